"""octavo watermark detect: z and p of a text, and what is no text."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from support.cli import octavo_command
from support.tiny_engine import save_words


@pytest.fixture(scope="module")
def answer() -> tuple[str, list[int]]:
    llm = LLM("smollm2", max_model_len=256, max_num_seqs=1, num_pages=32)
    params = SamplingParams(temperature=1.0, max_tokens=120, seed=7, watermark=True, ignore_eos=True)
    (output,) = llm.generate("A long letter from the sea:", params, use_tqdm=False)
    llm.shutdown()
    return output.outputs[0].text, list(output.outputs[0].token_ids)


@pytest.fixture(scope="module")
def marked(answer: tuple[str, list[int]]) -> str:
    return answer[0]


def run(*words: str, stdin: str | None = None) -> tuple[int, str, str]:
    done = octavo_command("watermark", "detect", *words, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def test_a_marked_text_is_told(marked: str, tmp_path: Path) -> None:
    file = tmp_path / "answer.txt"
    file.write_text(marked, encoding="utf-8")
    status, out, _ = run(str(file))
    assert status == 0
    assert "watermarked" in out
    status, out, _ = run("-", "--json", stdin=marked)
    found = json.loads(out)
    assert (status, found["marked"], found["model"]) == (0, True, "smollm2")
    assert found["z"] > 4 > 1e-3 > found["p"]
    status, out, _ = run("-", "--json", "--hashing-key", "7", stdin=marked)
    assert (status, json.loads(out)["marked"]) == (1, False)


def test_ids_are_exact(answer: tuple[str, list[int]], tmp_path: Path) -> None:
    text, ids = answer
    as_list, as_words = tmp_path / "answer.json", tmp_path / "ids"
    as_list.write_text(json.dumps(ids), encoding="utf-8")
    as_words.write_text(" ".join(map(str, ids)), encoding="utf-8")
    found = json.loads(run(str(as_list), "--ids", "--json")[1])
    assert found == json.loads(run(str(as_words), "--ids", "--json")[1])
    assert found["tokens"] == len(set(itertools.pairwise(ids)))
    assert found["marked"]
    status, out, err = run(str(as_list))
    assert (status, out) == (2, "")
    assert "with --ids they are read as token ids" in err
    as_words.write_text(text, encoding="utf-8")
    status, _, err = run(str(as_words), "--ids")
    assert (status, err) == (2, f"octavo: error: {as_words} has something else than token ids\n")


def test_of_a_few_tokens_nothing_is_said(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("A library lends books.", encoding="utf-8")
    status, out, _ = run(str(file))
    assert status == 1
    assert "too few tokens to tell, 16 different pairs of neighbours are needed" in out
    status, out, _ = run(str(file), "--json", "--gamma", "0.25")
    assert (json.loads(out)["needed"], json.loads(out)["marked"]) == (6, False)


def test_a_text_without_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "plain.txt"
    file.write_text("A library lends books to whoever asks, and asks for them back. " * 8, encoding="utf-8")
    status, out, _ = run(str(file), "--model", "smollm2")
    assert status == 1
    assert "no sign of a watermark" in out


@pytest.mark.parametrize(
    ("words", "content", "said"),
    [
        ([], b"", "the text has 0 token(s), and a watermark shows from 2 on"),
        ([], b"a", "the text has 1 token(s), and a watermark shows from 2 on"),
        ([], b"\xff\xfe\x00", "is no text: it must be UTF-8"),
        (["--gamma", "2"], b"A text.", "watermark.gamma must be"),
        (["--gamma", "nan"], b"A text.", "watermark.gamma must be"),
        (["--ids"], b"1 -1", "token -1 is not in the vocabulary of 49152"),
        (["--ids"], b"1 49152", "token 49152 is not in the vocabulary of 49152"),
        (["--hashing-key", "0"], b"A text.", "watermark.hashing_key must be"),
        (["--model", "no-such-model"], b"A text.", "unknown model"),
        (["--tokenizer", "no-such-model"], b"A text.", "unknown tokenizer"),
    ],
)
def test_what_cannot_be_tested_is_one_line(
    words: list[str], content: bytes, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "text"
    file.write_bytes(content)
    status, out, err = run(str(file), *words)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("octavo: error: ")
    assert said in err
    status, out, err = run(str(file), *words, "--json")
    assert (status, err) == (2, f"octavo: error: {json.loads(out)['error']}\n")


def test_a_name_that_is_empty() -> None:
    assert run("") == (2, "", "octavo: error: the file's name is empty\n")


@pytest.mark.parametrize("name", ["none.txt", "."])
def test_a_file_that_is_none_is_one_line(name: str, tmp_path: Path) -> None:
    status, _, err = run(str(tmp_path / name))
    assert status == 2
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    assert str(tmp_path) in err


def test_a_text_that_is_too_long_is_refused_before_a_model_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from octavo.cli import main, watermark

    monkeypatch.setattr(watermark, "MAX_TEXT_BYTES", 10)
    (tmp_path / "long").write_text("a" * 11, encoding="utf-8")
    assert main(["watermark", "detect", str(tmp_path / "long"), "--model", "none"]) == 2
    assert "has more than 10 bytes: give a part of it" in capsys.readouterr().err


def test_a_tokenizer_that_is_pulled_is_said_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from octavo.cli import _load, main

    pulled: list[str] = []
    monkeypatch.setattr(_load, "fetch", lambda model, quiet=False: pulled.append(model))
    (tmp_path / "text").write_text("A text.", encoding="utf-8")
    assert main(["watermark", "detect", str(tmp_path / "text"), "-m", "none", "--tokenizer", "other"]) == 2
    assert pulled == ["none", "other"]


def test_another_tokenizer_is_refused_with_the_first_token_that_differs(tmp_path: Path) -> None:
    """Its ids would be read from green lists that are not theirs: z would say nothing."""
    save_words(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    file = tmp_path / "text"
    file.write_text("A library lends books.", encoding="utf-8")
    status, _, err = run(str(file), "--tokenizer", str(tmp_path))
    assert status == 2
    assert re.search(r"the tokenizer .* is another one than the model's: its token \d+ is '", err)
    assert run(str(file), "--tokenizer", "smollm2")[0] in (0, 1)
