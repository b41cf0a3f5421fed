"""benchmarks/terminal_answers.py: which letters are of another script, and which answers count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import terminal_answers

from octavo.llm import LLM


@pytest.mark.parametrize(
    ("prompt", "answer", "count"),
    [
        ("Hello", "Gr\u00fc\u00dfe, 3 \u00d7 4 = 12. \u26c4", 0),
        ("Hello", "\u05e9\u05dc\u05d5\u05dd", 4),
        ("Hello", "\u041f\u0440\u0438vet", 3),
        ("Hello \u041f", "\u041f\u0440\u0438vet", 0),
        ("\u4f60\u597d", "Hello", 5),
        ("1 + 1 = ?", "2", 0),
        ("Hello", "\u7b54\u3048 x\u00b2 \uff21 \U0001d465", 2),
    ],
)
def test_letters_of_other_scripts(prompt: str, answer: str, count: int) -> None:
    assert terminal_answers.strays(prompt, answer) == count


def of(**fields: object) -> terminal_answers.Answer:
    plain = {"question": 1, "seed": 0, "tokens": 3, "stays": True, "strays": 0, "ends": True, "text": "A"}
    return terminal_answers.Answer(**{**plain, **fields})  # type: ignore[arg-type]


def test_both_are_asked_of_an_answer() -> None:
    found = [of(), of(stays=False, strays=9), of(seed=1, ends=False), of(seed=1, strays=1)]
    said = terminal_answers.summary(found)
    assert (said["answers"], said["good"], said["stay"], said["end"]) == (4, 2, 3, 3)
    assert (said["without_a_stray"], said["share"]) == (2, 0.5)
    assert [(each["seed"], each["stays"], each["ends"]) for each in said["others"]] == [
        (0, False, True),
        (1, True, False),
    ]


def test_the_transcript_is_all_of_seed_0() -> None:
    found = [of(text="one"), of(question=2, text="two", ends=False), of(seed=1, text="three")]
    text = terminal_answers.transcript({1: "First?", 2: "Second?"}, found)
    assert text.count(">>> ") == 2
    assert ">>> 2: Second?\n\ntwo\n[cut after 3 tokens]\n" in text
    assert "three" not in text


def test_answers_are_the_terminals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same bits as `octavo run --seed` prints, whatever runs beside them."""
    from octavo.cli import main

    file = tmp_path / "questions.jsonl"
    turns = ["Name a river in one word.", "Say hi."]
    file.write_text("".join(json.dumps({"question_id": i, "turns": [t]}) + "\n" for i, t in enumerate(turns)))
    prompts = terminal_answers.first_turns(file)
    assert list(prompts.values()) == turns
    found = terminal_answers.answers(LLM("smollm2", max_num_seqs=4), prompts, [0, 7])
    assert [(each.question, each.seed) for each in found] == [(0, 0), (1, 0), (0, 7), (1, 7)]
    assert main(["run", "smollm2", turns[1], "--seed", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == found[3].text
