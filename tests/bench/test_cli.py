"""octavo bench, as it is typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.bench.roofline import Line, Meter
from octavo.cli import main
from octavo.cli._bench import numbers
from octavo.cli.bench import DEFAULT
from octavo.errors import InvalidRequestError

SMALL = ["--max-model-len", "128", "--num-pages", "64", "--num-runs", "1"]


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["bench", *words]) == 0
    out, err = capsys.readouterr()
    assert all(line.endswith((" ...", " s")) for line in err.splitlines()), "progress, and nothing else"
    return out


@pytest.mark.parametrize("words", [[], ["smollm2"], [DEFAULT], [DEFAULT, "--model", "smollm2"]])
def test_the_command_may_be_left_out(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--batch-sizes", "2", "--prompt-tokens", "5", "--max-tokens", "3", "--json"]
    found = json.loads(output(capsys, *words, *flags, *SMALL))
    assert (found["model"], found["prompt_tokens"], found["max_tokens"]) == ("smollm2", 5, 3)
    assert [row["batch"] for row in found["batches"]] == [2]
    assert found["load_s"] > 0


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "--batch-sizes", "1,2", "--prompt-tokens", "5", "--max-tokens", "2", *SMALL)
    lines = out.splitlines()
    assert lines[0].startswith("smollm2: loaded in ")
    assert [line.split()[0] for line in lines[-3:]] == ["batch", "1", "2"]


def test_a_plot_that_cannot_be_made_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "ablate", "no/such-model", "--out", "x"]) == 2
    assert "a PNG needs matplotlib" in capsys.readouterr().err


def test_roofline(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["roofline", "--batch-sizes", "2", "--prompt-tokens", "9", *SMALL]
    found = json.loads(output(capsys, *words, "--json"))
    assert found["work"]["head_macs"] == 576 * 49152 + 576 * 576 + 3 * 576 * 1536
    assert [(row["work"], row["size"]) for row in found["lines"]] == [("prompt", 9), ("decode", 2)]
    lines = output(capsys, *words).splitlines()
    assert "GB/s read" in lines[0]
    assert lines[3].startswith("share: ")
    for column in ("share", "limit", "bandwidth", "GB/s"):
        assert column in lines[3]
        assert column in lines[4].split()
    assert lines[-1].split()[:2] == ["decode", "2"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-c 10", "max_model_len must be at least 48 (batches decode 32 tokens after 16), not 10 (-c)"),
        ("-c 100", "--prompt-tokens 512: max_model_len 100 leaves room for at most 99 (-c)"),
        ("--backend reference", "the roofline needs the native kernels (--backend cpu)"),
        ("--device cuda", "the roofline needs the native kernels (--backend cpu)"),
        ("--batch-sizes 8 --max-num-seqs 4", "--batch-sizes 8: max_num_seqs 4 allows no more at once"),
        ("--batch-sizes 4,65537", "--batch-sizes takes at most 65536 sequences, not 65537"),
    ],
)
def test_a_roofline_without_room_is_refused_before_anything_is_loaded(
    words: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.cli.bench.load", lambda *_: pytest.fail("it is loaded"))
    assert main(["bench", "roofline", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"octavo: error: {text}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--prompt-tokens 99999999", "--prompt-tokens 99999999: max_model_len 8192 leaves room for at most"),
        ("--num-pages 8 -c 64 --prompt-tokens 9", "--batch-sizes 32: their prompts take 64 pages of KV"),
    ],
)
def test_a_roofline_without_room_is_refused_before_anything_is_measured(
    words: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.bench.calibrate.calibrate", lambda *_: pytest.fail("it is measured"))
    assert main(["bench", "roofline", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"octavo: error: {text}")
    assert err.count("\n") == 1, "nothing is announced"


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--batch-sizes", "1000000"], "--batch-sizes"),
        (["sweep", "--batch-sizes", "1,1000000"], "--batch-sizes"),
        (["latency", "--batch-size", "1000000"], "--batch-size"),
    ],
)
def test_too_large_a_batch_is_refused_by_the_flag_that_was_typed(
    words: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    err = capsys.readouterr().err
    assert flag in err
    assert "65536" in err
    assert "num-seqs" not in err
    assert err.count("\n") == 1


def test_a_roofline_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Meter.lines

    def cut(self: Meter, *asked: Any) -> Iterator[Line]:
        yield next(whole(self, *asked))
        raise KeyboardInterrupt

    monkeypatch.setattr(Meter, "lines", cut)
    words = ["bench", "roofline", "--batch-sizes", "2", "--prompt-tokens", "9", *SMALL]
    assert main([*words, "--json"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert (found["cut"], [row["work"] for row in found["lines"]]) == ("interrupted", ["prompt"])
    assert main(words) == 130
    assert capsys.readouterr().out.endswith("interrupted: fewer lines than asked for\n")


@pytest.mark.parametrize("command", [[], ["roofline"], ["serve"]])
def test_each_has_help_and_json(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--batch-sizes", "1,x"], 2, "--batch-sizes takes positive numbers with commas between, not '1,x'"),
        (["roofline", "--prompt-tokens", "0"], 2, "--prompt-tokens takes positive numbers"),
        (["roofline", "--contexts", "abc"], 2, "--contexts takes positive numbers"),
        (["no-such-model"], 2, "unknown model 'no-such-model'"),
        (["roofline", "--backend", "reference", "--isa", "avx2"], 2, "needs the native kernels"),
        (["serve", "http://127.0.0.1:1"], 1, "no answer from 127.0.0.1:1"),
        (["--no-such-flag"], 2, "no such option: --no-such-flag"),
    ],
)
def test_errors_are_one_line(
    words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert err.count("\n") == 1
    assert text in err


def test_numbers() -> None:
    assert numbers("1,8, 32", "--x") == [1, 8, 32]
    for text in ("", "1,,2", "-1", "0", "1.5"):
        with pytest.raises(InvalidRequestError, match="--x takes"):
            numbers(text, "--x")
