"""octavo quantize, from a line typed to the folder that it makes."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.quantize import _tell
from octavo.quantize.job import Report
from support.cli import command, environment, octavo_command
from support.small_models import save_model, text


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("dense") / "model")


def test_a_folder(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["quantize", str(dense), str(out), "--group-size", "32"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{out}: 14 matrices of 4.8")
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["bits"], config["group_size"]) == ("gptq", 4, 32)


def test_a_calibrated_one_as_json(dense: Path, tmp_path: Path) -> None:
    out, read = tmp_path / "out", tmp_path / "text"
    read.write_text(text(), encoding="utf-8")
    done = octavo_command(
        "quantize", str(dense), str(out), "--method", "gptq", "--bits", "8", "--group-size", "-1", "--json",
        "--calibration", str(read), "--calibration-samples", "8", "--calibration-length", "64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert (report["matrices"], report["method"], report["unmet"]) == (14, "gptq", [])
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["group_size"], config["desc_act"]) == (8, -1, True)


def test_what_was_left_out_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(Report("out", "awq", 2, 100, 400, 10_000_000, 5_000_000, unfolded=["a.b", "c.d"], unmet=["e"]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "out: 2 matrices of 4.00 bits a weight; weights 10.0 MB -> 5.0 MB"
    assert lines[1:3] == ["not reached by the text, and rounded to nearest: 1", "  e"]
    assert lines[4:] == ["  a.b", "  c.d"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "int8", "--group-size", "64"], "leave --group-size 64 out"),
        (["--method", "hqq"], "the method 'hqq' is not supported; awq, fp8, gptq, int8, nf4, rtn are"),
        (["--bits", "7"], "rtn with 7 bits is not supported"),
        (["--group-size", "128"], "groups of 128 do not divide rows of 192"),
        (["--method", "awq"], "awq needs a text"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], message: str, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(dense), str(tmp_path / "out"), *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("octavo: error: ")]
    assert len(said) == 1
    assert message in said[0]
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_line_and_it_goes_on_later(dense: Path, tmp_path: Path) -> None:
    """Files may grow to 100 kB, which a layer's does, and the embedding's does not."""
    out = tmp_path / "out"
    line = command("quantize", str(dense), str(out), "--group-size", "32", "--json")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        line, env=environment(), preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("octavo: error: File too large")
    assert not out.exists()
    partial = tmp_path / "out.partial"
    left = {path.name for path in partial.iterdir()}
    assert "octavo-quantize.json" in left
    assert not any(name.endswith(".part") for name in left)
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.exists()
    assert not partial.exists()
