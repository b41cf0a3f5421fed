"""The arithmetic of format_speed.py and same_files.py, mistakes in it, and both from end to end in small."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.source_mutants import Cases, checked, mistaken, must_die


def run(tok_s: float, nbytes: float, cache: float, coded: bool = False) -> dict[str, Any]:
    """What a process says of its format."""
    return {
        "tok_s": tok_s,
        "bytes": nbytes,
        "bits": 4.5,
        "layout": "u4",
        "coded": coded,
        "cache_tok_s": cache,
    }


def check_shares(speed: Any) -> None:
    """f16 reads fastest, 20 kB/s; of four bits the middle run counts; codes are bound by their own loop."""
    found = speed.judged({
        "f16": [run(10.0, 2000.0, 40.0)],
        "u4": [run(30.0, 500.0, 90.0), run(32.0, 500.0, 100.0), run(40.0, 500.0, 110.0)],
        "nf4": [run(18.0, 600.0, 20.0, coded=True)],
        "fast": [run(14.0, 1000.0, 90.0, coded=True)],
    })  # fmt: skip
    four, codes = found["u4"], found["nf4"]
    assert (four["tok_s"], four["bandwidth"], four["share"]) == (32.0, 16_000.0, 0.8)
    assert four["spread"] == pytest.approx(4 / 3)
    assert (four["of_cache"], four["over_f16"]) == (0.32, 3.2)
    assert four["wanted_tok_s"] == pytest.approx(0.85 * 20_000 / 500)
    assert four["over_wanted"] == pytest.approx(32 / 34)
    assert codes["wanted_tok_s"] == pytest.approx(0.80 * 20.0)
    assert codes["over_wanted"] == pytest.approx(18 / 16)
    assert found["fast"]["wanted_tok_s"] == pytest.approx(0.85 * 20)
    assert "over_wanted" not in found["f16"]


def check_ratios(same: Any) -> None:
    """Twice as fast; a hair below its bound; noisy by our own runs alone; a side that fails."""
    fast, slow = ({"decode": rate, "decode_spread": spread} for rate, spread in ((30.0, 1.2), (15.0, 1.05)))
    found = same.judged(fast, slow, "decode", 2.0)
    assert (found["ours"], found["theirs"], found["ratio"]) == (30.0, 15.0, 2.0)
    assert (found["reached"], found["noisy"]) == (True, True)
    assert (found["spread"], found["their_spread"]) == (1.2, 1.05)
    found = same.judged(slow, fast, "decode", 0.501)
    assert (found["ratio"], found["reached"], found["noisy"]) == (0.5, False, False)
    assert same.judged(None, slow, "decode", 1.0)["ratio"] is None
    assert same.judged(fast, None, "decode", 1.0)["why"]
    assert same.forked(fast, slow, "decode") == {"theirs": 15.0, "their_spread": 1.05, "ratio": 2.0}
    assert same.forked(fast, None, "decode") == {"ratio": None}


CASES: Cases = {
    "format_speed": ([check_shares], [
        ("tok_s * each[0][\"bytes\"]", "1.2 * tok_s * each[0][\"bytes\"]"),
        ("max(form[\"bandwidth\"] for", "min(form[\"bandwidth\"] for"),
        ("tok_s = statistics.median(rates)", "tok_s = max(rates)"),
        ("LEAST_SHARE * best", "best"),
        ("min(wanted, LEAST_OF_CACHE", "max(wanted, LEAST_OF_CACHE"),
        ("form[\"tok_s\"] / form[\"cache_tok_s\"]", "form[\"cache_tok_s\"] / form[\"tok_s\"]"),
        ("form[\"tok_s\"] / forms[BASE][\"tok_s\"]", "form[\"bytes\"] / forms[BASE][\"bytes\"]"),
    ]),
    "same_files": ([check_ratios], [
        ("ours[figure] / theirs[figure]", "theirs[figure] / ours[figure]"),
        ("\"reached\": ratio >= least", "\"reached\": round(ratio, 2) >= round(least, 2)"),
        ("ours[figure] / fork[figure]", "fork[figure] / ours[figure]"),
        ("ours[f\"{figure}_spread\"] > NOISY", "theirs[f\"{figure}_spread\"] > NOISY"),
    ]),
}  # fmt: skip


@checked(CASES)
def test_figures(name: str, check: Callable[[Any], None]) -> None:
    check(importlib.import_module(name))


@mistaken(CASES)
def test_mutants_die(name: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    must_die(importlib.import_module(name), right, wrong, CASES[name][0])


def test_a_format_decodes(smollm2_path: Path) -> None:
    found = importlib.import_module("format_speed").one(str(smollm2_path), None, 1)
    assert found["tok_s"] > 0
    assert found["cache_tok_s"] > 0
    assert (found["layout"], found["coded"]) == ("u4", False)
    assert 60e6 < found["bytes"] < 120e6


def test_every_form_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line to the table, with files and rates that are made up."""
    speed, formats = importlib.import_module("format_speed"), importlib.import_module("formats")
    monkeypatch.setattr(speed, "shipped", lambda _: Path("model.gguf"))
    monkeypatch.setattr(speed, "in_a_process", lambda form, _: run(10.0 + len(form.name), 1000.0, 40.0))
    monkeypatch.setattr(formats, "resolve", Path)
    made = list[str]()
    monkeypatch.setattr(formats, "quantize", lambda asked: (made.append(asked.kind), asked.target.touch()))
    monkeypatch.setattr(formats, "python_with", lambda *_: sys.executable)
    (copies := tmp_path / "copies.py").write_text("import shutil, sys; shutil.copy(*sys.argv[1:3])")
    monkeypatch.setattr(formats, "REQUANTIZE", copies)
    assert speed.main(["--rounds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["forms"]) == [formats.BASE, *formats.ON_LOAD, *formats.MADE, *formats.READ]
    assert found["runs"]["nf4"] == [13.0, 13.0]
    folder, once = tmp_path / "kept", [*made]
    keep = ["--folder", str(folder), "--keep"]
    assert speed.main([*keep, "--rounds", "0"]) == 0
    assert capsys.readouterr().out == ""
    kept = sorted(path.stem for path in folder.iterdir())
    assert kept == sorted([formats.BASE, *formats.MADE, *formats.READ])
    copies.write_text("raise SystemExit('made again')")
    assert speed.main([*keep, "--rounds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"].keys() == found["runs"].keys()
    assert made == [*once, *once]


def test_files_are_named(tmp_path: Path) -> None:
    same, path = importlib.import_module("same_files"), tmp_path / "a=b.gguf"
    path.touch()
    assert same.named(f"A file={path}") == ("A file", str(path))
    for wrong in (str(path.name), f"A={tmp_path}/none.gguf"):
        with pytest.raises(ArgumentTypeError, match="no NAME=FILE"):
            same.named(wrong)


def test_what_is_held_of_a_file(smollm2_path: Path) -> None:
    assert 0.9 < importlib.import_module("same_files").held_over_file(smollm2_path) < 1.2
