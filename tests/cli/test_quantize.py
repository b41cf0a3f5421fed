"""octavo quantize, from a line typed to the folder that it makes."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.cli.quantize import _tell
from octavo.quantize import folder
from octavo.quantize.asked import Report
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
        (["--method", "awq"], "awq needs a text that is like what the model will read: --calibration"),
        (["--method", "nf4", "--group-size", "32"], "nf4 has groups of its own: leave --group-size 32 out"),
        (["--damp", "0.5"], "rtn has no use for --damp 0.5: leave it out"),
        (["--method", "fp8", "--act-order"], "fp8 has no use for --act-order: leave it out"),
        (["--no-double-quant"], "rtn has no use for --no-double-quant: leave it out"),
        (["--allow-requantize"], "--allow-requantize is for GGUF files: leave it out"),
        (["--type", "Q4_0"], "--type writes a GGUF file: call it"),
        (["--calibration-samples", "3"], "--calibration-samples 3 says how a text is read, but there is no"),
        (["--calibration-length", "64"], "--calibration-length 64 says how a text is read, but there is no"),
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


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--bits", "8"], "--bits 8"), (["--symmetric"], "--symmetric"), (["--damp", "0.5"], "--damp 0.5")],
)
def test_a_type_says_it_all(
    words: list[str], said: str, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.gguf"
    assert main(["quantize", str(dense), str(out), "--type", "Q4_0", *words]) == 2
    assert f"Q4_0 says how numbers are rounded: leave {said} out" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_of_what_is_written(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Capitals change nothing; into the model's own folder nothing is written."""
    assert main(["quantize", str(dense), str(tmp_path / "o.GGUF")]) == 2
    assert "--type says which" in capsys.readouterr().err
    assert main(["quantize", str(dense), str(tmp_path / "o.GGUF"), "--type", "Q8_0"]) == 0
    (made,) = tmp_path.iterdir()
    assert made.name == "o.GGUF"
    before = sorted(path.name for path in dense.iterdir())
    assert main(["quantize", str(dense), str(dense / "inner"), "--method", "int8"]) == 2
    assert "lies in the model's own folder" in capsys.readouterr().err
    assert sorted(path.name for path in dense.iterdir()) == before


def test_what_is_no_model_is_called_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.txt"
    file.write_text("Hello.")
    assert main(["quantize", str(file), str(tmp_path / "o")]) in (1, 2)
    assert "of which GGUF files are made" not in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("nf4", ["nf4", "bitsandbytes-nf4", "bitsandbytes"]),
        ("int8", ["int8", "bitsandbytes"]),
        ("fp8", ["fp8", "compressed-tensors"]),
    ],
)
def test_what_was_made_is_loaded_by_its_names_and_no_others(
    method: str, names: list[str], dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["quantize", str(dense), out, "--method", method]) == 0
    for name in (
        "nf4",
        "bitsandbytes-nf4",
        "bitsandbytes-fp4",
        "bitsandbytes",
        "int8",
        "fp8",
        "compressed-tensors",
    ):
        capsys.readouterr()
        status = main(["generate", out, "a", "-n", "1", "--quantization", name])
        assert (status == 0) is (name in names), name
        assert ("contradicts" in capsys.readouterr().err) is (name not in names)


def test_two_runs_are_kept_apart(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was interrupted holds the folder while it runs again; the other says so at once."""
    out, read = tmp_path / "out", tmp_path / "text"
    read.write_text(text(), encoding="utf-8")
    words = ["quantize", str(dense), str(out), "--method", "gptq", "--group-size", "32"]
    words += ["--calibration", str(read), "--calibration-samples", "4", "--calibration-length", "32"]
    write, begun = folder.write_safetensors, list[int]()

    def meanwhile(path: Path, tensors: Any) -> None:
        if not begun:
            begun.append(main(words))
        write(path, tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "write_safetensors", meanwhile)
        assert main(words) == 0
    assert begun == [2]
    assert f"{out}.partial is being written by another process" in capsys.readouterr().err


def test_ctrl_c_says_where_it_goes_on(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = folder.write_safetensors

    def interrupted(path: Path, tensors: Any) -> None:
        write(path, tensors)
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "write_safetensors", interrupted)
    assert main(["quantize", str(dense), str(tmp_path / "out"), "--group-size", "32"]) == 130
    assert "out.partial holds what was made: the same command goes on there" in capsys.readouterr().err


@pytest.mark.parametrize("whole", [0, 1])
def test_a_disk_that_fills_leaves_what_can_be_gone_on_from(
    whole: int, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that are whole, in a folder that another run goes on in; and without one, nothing."""
    write, written, out = folder.write_safetensors, list[Path](), tmp_path / "out"

    def full(path: Path, tensors: Any) -> None:
        if len(written) == whole:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, tensors)
        written.append(path)

    words = ["quantize", str(dense), str(out), "--group-size", "32", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "write_safetensors", full)
        assert main(words) == 1
    assert "no space left on the disk" in capsys.readouterr().err
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == ({"octavo-quantize.json", written[0].name} if whole else set())
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == whole
    assert [*tmp_path.iterdir()] == [out]


def test_a_full_disk_is_one_line_and_it_goes_on_later(dense: Path, tmp_path: Path) -> None:
    """Files may grow to 100 kB: the first one does not fit, so nothing is there to go on from."""
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
    assert not list(tmp_path.iterdir())
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [out]
