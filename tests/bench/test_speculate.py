"""octavo bench speculate: the arithmetic of its figures, and a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.bench.speculate import EXAMPLES, Answers, Verified, conversations, figures, repeats
from octavo.cli import main
from octavo.errors import InvalidRequestError, OctavoError

PLAIN = Answers(((1, 2, 3, 4, 5, 6, 7),), tuple(Verified(0.010, 1, 0) for _ in range(6)), 0.1)
DRAFTED = Answers(PLAIN.token_ids, (Verified(0.011, 1, 0), Verified(0.021, 4, 4), Verified(0.013, 1, 2)), 0.1)


def test_figures() -> None:
    found = figures([(PLAIN, DRAFTED)], 0.003)
    assert (found.prompts, found.tokens, found.step_ms) == (1, 6, pytest.approx(10))
    assert found.c_d == pytest.approx(0.1)
    assert [(line.drafted, line.tau) for line in found.steps] == [(0, 1), (2, 1), (4, 4)]
    assert [line.c_v for line in found.steps] == pytest.approx([1.0, 1.2, 2.0])  # the proposer's left out
    assert sum(line.share for line in found.steps) == pytest.approx(1)
    assert (found.drafting, found.tau) == (pytest.approx(2 / 3), 2.5)
    assert found.predicted == pytest.approx(6 / (1.0 + 1.2 + 2.0 + 3 * 0.1))
    assert found.measured == pytest.approx(0.060 / 0.045)
    assert found.unrepeated == found.measured
    assert found.accepted_at == (0.5, 0.5, 1.0, 0.0)  # of two tokens none, of four three


def test_a_model_drafts_for_steps_that_verify() -> None:
    found = figures([(PLAIN, DRAFTED)], 0.002, always=False)
    assert found.c_d == pytest.approx(0.1)
    assert [line.c_v for line in found.steps] == pytest.approx([1.1, 1.2, 2.0])
    assert found.predicted == pytest.approx(6 / (1.1 + 1.2 + 2.0 + 2 * 0.1))


def test_answers_that_loop_stand_apart() -> None:
    ids = (tuple([1, 2] * 20),)
    loop = [Answers(ids, one.steps, one.seconds) for one in (PLAIN, PLAIN)]
    found = figures([(PLAIN, DRAFTED), (loop[0], loop[1])], 0.0)
    assert found.measured == pytest.approx(0.120 / 0.105)
    assert found.unrepeated == pytest.approx(0.060 / 0.045)
    assert figures([(loop[0], loop[1])], 0.0).unrepeated is None


def test_another_answer_is_an_error() -> None:
    other = Answers(((1, 2, 3),), DRAFTED.steps, 0.1)
    with pytest.raises(OctavoError, match="please report it"):
        figures([(PLAIN, other)], 0.0)
    assert figures([(PLAIN, other)], 0.0, same=False).measured == pytest.approx(0.060 / 0.045)
    with pytest.raises(OctavoError, match="nothing was decoded"):
        figures([(Answers(((1,),), (), 0.1),) * 2], 0.0)


@pytest.mark.parametrize(
    ("tokens", "loops"),
    [([1, 2, 3] * 20, True), (list(range(60)), False), ([*range(8), 9, *range(8), 10], False), ([], False)],
)
def test_repeats(tokens: list[int], loops: bool) -> None:
    assert repeats(tokens) is loops


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "hi"},
        {"turns": ["hi", "more"]},
        {"messages": [{"role": "user", "content": "hi"}], "prompt": "other"},
    ],
)
def test_prompts_of_a_file(tmp_path: Path, line: dict[str, object]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{json.dumps(line)}\n\n{json.dumps(line)}\n")
    assert conversations(path) == [[{"role": "user", "content": "hi"}]] * 2
    assert len(conversations(None)) == len(EXAMPLES)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "prompts.jsonl, line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("3", "line 2 is no JSON object"),
        ('{"other": 1}', "line 2 has none of prompt, messages, turns"),
        ('{"prompt": ["hi"]}', "line 2: prompt must be a text"),
        ('{"turns": []}', "line 2: turns must be a list of texts"),
        ('{"turns": 3}', "line 2: turns must be"),
        ('{"messages": "hi"}', "line 2: messages must be a list of objects with role and content"),
        ('{"messages": [{"role": "user"}]}', "line 2: messages must be"),
        ('{"messages": []}', "line 2: messages must be"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "hi"}}\n{text}\n')
    with pytest.raises(InvalidRequestError, match=wrong):
        conversations(path)


def test_files_without_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\n \n")
    with pytest.raises(InvalidRequestError, match="holds no prompts"):
        conversations(path)
    path.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(InvalidRequestError, match="no text in UTF-8"):
        conversations(path)
    with pytest.raises(InvalidRequestError, match="cannot be read: No such file"):
        conversations(tmp_path / "missing")


def test_a_line_ends_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028b\x85c"}\r\n{"prompt": "d"}', "utf-8", newline="")
    assert [talk[0]["content"] for talk in conversations(path)] == ["a\u2028b\x85c", "d"]


SMALL = ["--max-model-len", "512", "--num-pages", "64", "--limit", "2", "--max-tokens", "24"]


@pytest.mark.parametrize("method", ["ngram", "suffix", "self"])
def test_a_run(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"method": method, "num_speculative_tokens": 4, "policy": "fixed"}
    config = json.dumps(given)
    assert main(["bench", "speculate", "--speculative-config", config, "--json", *SMALL]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speculative_config"]["method"] == method
    assert (found["prompts"], found["model"]) == (2, "smollm2")
    assert found["drafting"] > 0
    assert 0 < found["c_d"] < (4 if method == "self" else 1)
    assert all(0 <= share <= 1 for share in found["accepted_at"])
    assert max(line["drafted"] for line in found["steps"]) == len(found["accepted_at"])
    assert {line["drafted"] for line in found["steps"]} <= set(range(5))


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speculate", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "smollm2 with ngram, drafts of at most 8 tokens, policy auto"
    assert lines[-1].startswith("gain ")
    assert ["drafted", "steps", "tau", "c_v"] in [line.split() for line in lines]


def test_a_wrong_config_is_an_error_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speculate", "no-such-model", "--speculative-config", '{"method": "psychic"}']) == 2
    assert "speculative_config has the method 'psychic'; there are: " in capsys.readouterr().err
