"""`make gpu-check` on the CPU: tiny sizes, interpreted, with nothing installed but what it may need."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cuda import interpreted

ROOT = Path(__file__).resolve().parents[3]
ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names} or name == "octavo.kernels._native":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import builtins
plain, asked = builtins.__import__, set()
def noted(name, namespace=None, *more):
    who = (namespace or {{}}).get("__name__", "").split(".")[0]
    if who in ("octavo", "gpu", "__main__"):
        asked.add(name.split(".")[0])
    return plain(name, namespace, *more)
builtins.__import__ = noted
import atexit
atexit.register(lambda: print("asked for", *sorted(asked - set(sys.stdlib_module_names))))
"""
"""UNNEEDED is absent; at the end, who Octavo and the script asked for is printed."""
UNNEEDED = {
    "llguidance", "prometheus_client", "fastapi", "uvicorn", "starlette", "rich", "typer",
    "jinja2", "huggingface_hub", "tokenizers", "safetensors", "transformers", "nanobind", "ml_dtypes",
}  # fmt: skip
ALLOWED = {
    "octavo",
    "gpu",
    "harness",  # for the commit, with what it imports
    "engines",
    "numpy",
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "ml_dtypes",
}
"""What a machine with a GPU has; ml_dtypes where it is there (gpu/bare.py)."""


def script(code: str) -> subprocess.CompletedProcess[str]:
    """Python with this source tree, interpreting Triton, in which UNNEEDED cannot be imported."""
    given = os.environ["PYTHONPATH"]  # conftest's: this checkout, wherever octavo is installed from
    paths = os.pathsep.join([given, str(ROOT / "src"), str(ROOT / "benchmarks")])
    return subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", ABSENT.format(names=UNNEEDED) + code],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def asked_for(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The modules outside of the standard library that Octavo and the script imported."""
    return set(done.stdout.splitlines()[-1].removeprefix("asked for ").split())


def test_a_bare_machine_has_enough() -> None:
    """Checks run, and every module of the script imports, with neither extension nor server packages."""
    done = script(
        "import gpu.speed, gpu.sanitize, gpu.text, gpu.verify, gpu.served, gpu.whole, gpu.__main__ as g\n"
        "options = '--device cpu --dtype float32 --brief --checks-only --no-write'\n"
        "sys.exit(g.main(options.split()))"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "6 checks, 0 failed" in done.stdout
    assert "left out: served drain: fastapi, uvicorn" in done.stdout
    assert "left out: engine text: tokenizers" in done.stdout
    assert {"numpy", "torch", "triton", "ml_dtypes"} <= asked_for(done) <= ALLOWED


def test_the_source_tree_is_small_enough_to_carry() -> None:
    """What git knows, and what it would add: under 64 MB."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert sum(path.stat().st_size for path in paths if path.is_file()) < 64e6


def test_the_sanitizer_is_run_where_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    """A stand-in for the tool: what it finds fails the check, what does not end is not called clean."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from gpu import __main__ as gpu
    from gpu import sanitize

    ((tool, clean, note),) = sanitize.sanitize(None, "cuda", "float16")
    assert (tool, clean) == ("compute-sanitizer", None)
    assert "not installed" in note
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(
        '#!/bin/sh\nif [ "$2" = racecheck ]; then echo 1 hazard; exit $4; fi\nshift 4; exec "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sanitize.shutil, "which", lambda name: str(fake))
    assert sanitize.find() == str(fake)
    runs = [
        list(sanitize.sanitize(str(fake), "cuda", "float16", 5, command)) for command in (["true"], ["false"])
    ]
    assert [(tool, clean) for tool, clean, _ in runs[0]] == [("memcheck", True), ("racecheck", False)]
    assert runs[0][1][2] == "1 hazard"
    assert runs[1][0][:2] == ("memcheck", None)  # the program's own failure is no clean run
    slow = list(sanitize.sanitize(str(fake), "cuda", "float16", 0.2, ["sleep", "20"]))
    assert slow[0] == ("memcheck", None, "ran past 0.2 s")
    assert next(sanitize.sanitize(str(tmp_path), "cuda", "float16"))[1] is None
    result: dict[str, Any] = {}
    monkeypatch.setattr(
        sanitize, "sanitize", lambda *_: iter([("memcheck", True, ""), ("racecheck", False, "")])
    )
    assert gpu.sanitized("cuda", "float16", result) == 1
    assert result["sanitizer"][1] == {"tool": "racecheck", "clean": False, "note": ""}


def test_a_wrong_result_is_a_failure(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from gpu import __main__ as gpu
    from gpu.checks import error

    assert error(np.float32([1, np.nan]), np.float32([1, 2])) == float("inf")
    result: dict[str, Any] = {}
    assert gpu.run_checks([("good", 0.1, 0.2), ("bad", 0.3, 0.2)], result, True) == 1
    assert "FAIL bad" in capsys.readouterr().out
    assert [c["ok"] for c in result["checks"]] == [True, False]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_product_that_leaves_columns_out_is_a_failure(dtype: str, monkeypatch: Any) -> None:
    """Any group of 8 of 4,096; rounding alone is none."""
    import torch

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    interpreted()
    from gpu.checks import TOLERANCE, error, weight_of

    def rounded(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = torch.from_numpy(values).to(getattr(torch, dtype)).float().numpy()
        return found

    rng = np.random.default_rng(0)
    x = rounded(rng.standard_normal((1, 4096)).astype(np.float32))
    w = weight_of(rng, "dense", 1024, 4096).dequantize()
    parts = (rounded(w) * x).reshape(1024, 512, 8).sum(axis=2)
    want, got = w @ x[0], parts.sum(axis=1)
    assert error(rounded(got), want) < 0.6 * TOLERANCE[dtype]
    assert min(error(rounded(got - part), want) for part in parts.T) > TOLERANCE[dtype]


def test_sixteen_bits_are_within_their_roundoff(monkeypatch: Any) -> None:
    """Products and attention in float16 (the interpreter has no bfloat16), at the tolerance of a device."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    interpreted()
    from gpu import checks

    with np.errstate(all="ignore"):
        found = [
            *checks.linear("cpu", "float16", [(1, 24, 64)]),
            *itertools.islice(checks.attention("cpu", "float16", [20, 7], [1, 1]), 2),
        ]
    assert len(found) == 22
    assert [what for what, error, allowed in found if not 0 < error <= allowed] == []
    assert {allowed for _, _, allowed in found} == {2**-10, 2**-9}


def test_results_keep_earlier_ones(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from gpu import __main__ as gpu

    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    paths = set()
    for n in range(3):
        result = {"date": "2026-01-01T", "commit": "abc", "n": n}
        path = gpu.place(result)
        gpu.save(result, path)
        paths.add(path)
    assert len(paths) == 3
    assert {json.loads(p.read_text())["n"] for p in paths} == {0, 1, 2}


def test_a_table_without_time_says_what_it_left_out(monkeypatch: Any) -> None:
    """No row begins after its time; each that is left out is named."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    interpreted()
    from gpu import speed

    rows = list(speed.table("cpu", "float32", speed.SMALL, until=0.0))
    assert [row.note for row in rows[2:]] == ["left out: the time is up"] * 11


@pytest.mark.parametrize("what", ["draws", "overlap", "pages", "verify"])
def test_new_checks_hold(monkeypatch: Any, what: str) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    interpreted()
    from gpu import checks

    with np.errstate(all="ignore"):
        made = {
            "draws": lambda: checks.draws("cpu", 2, 600),
            "overlap": lambda: checks.overlap("cpu", "float32", 3),
            "pages": lambda: checks.pages("cpu", "float16"),
            "verify": lambda: itertools.islice(checks.verify("cpu", "float32"), 2),
        }[what]
        found = list(made())
    assert found
    assert [error for _, error, _ in found] == [0.0] * len(found)


@pytest.mark.slow
def test_the_whole_script(tmp_path: Path) -> None:
    """All checks and the whole table, in tiny shapes: figures mean nothing, that they come does."""
    code = (
        "import gpu.__main__ as g\n"
        f"g.ROOT = g.Path({str(tmp_path)!r}); (g.ROOT / 'benchmarks').mkdir()\n"
        "sys.exit(g.main(['--dry']))"
    )
    done = script(code)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    (path,) = (tmp_path / "benchmarks" / "results").glob("gpu-*.json")
    table = json.loads(path.read_text())["table"]
    assert len(table) == 22
    assert asked_for(done) <= ALLOWED
    without = [row["note"] for row in table if row["value"] is None]
    why = [note for note in without if not note.startswith("not resolved") and "tokenizers" not in note]
    assert len(why) == 1
    assert why[0].partition("; ")[2].startswith("transformers did not run"), "it is absent here"
    assert [row["work"] for row in table if "tokenizers" in row["note"]] == [
        "tiny dense, 1 stream, whole engine: share of bandwidth", "3 conversations, offline, 3 at once",
        "3 users over HTTP, 3 conversations, over offline",
    ]  # fmt: skip


def test_a_models_text_is_compared_with_numpys(monkeypatch: Any, tmp_path: Path) -> None:
    """A file in pieces; a mutant whose logits have another sign is found."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    interpreted()
    from gpu import text

    from support.gguf_files import write_gguf
    from support.tiny_engine import save_tiny_llama

    path = write_gguf(save_tiny_llama(tmp_path), tmp_path / "tiny.gguf", "llama", {"attn": "Q8_0"})
    data = path.read_bytes()
    pieces = [tmp_path / f"piece{n}" for n in range(3)]
    for n, piece in enumerate(pieces):
        piece.write_bytes(data[n * len(data) // 3 : (n + 1) * len(data) // 3])
    with np.errstate(all="ignore"):
        found = list(text.text("cpu", pieces, 3))
        assert [error <= allowed for _, error, allowed in found] == [True, True], found
        assert "piece0: 3 greedy tokens of 3 prompts" in found[0][0]
        step = text.Greedy.step

        def off(self: Any, tokens: Any) -> Any:
            logits = step(self, tokens)
            return -logits if self.on_device else logits

        make = text.Greedy.__init__

        def named(self: Any, path: Path, backend: Any, dtype: str, length: int) -> None:
            make(self, path, backend, dtype, length)
            self.on_device = dtype == "auto"

        monkeypatch.setattr(text.Greedy, "__init__", named)
        monkeypatch.setattr(text.Greedy, "step", off)
        broken = list(text.text("cpu", pieces, 1))
    assert broken[0][1] == len(text.PROMPTS)
