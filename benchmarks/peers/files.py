"""The models that peers are compared on, as each engine wants them. Made once, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from asked import ScriptError
from harness import python_with

from octavo.checkpoints.sources import default_cache_dir, resolve
from peers.rows import TINYLLAMA

HERE = Path(__file__).parent


def shipped(model: str) -> Path:
    """The file as it is: pulled, or for the synthetic model written."""
    if model != TINYLLAMA:
        return resolve(model)
    return _made("synthetic.py", "gguf", cache() / f"{TINYLLAMA}.Q4_0.gguf", [])


def requantized(model: str, python: str, kind: str = "Q4_0") -> Path:
    """The same as llama.cpp makes it of another type; what is Q4_0 already stays as it is."""
    source = shipped(model)
    if model == TINYLLAMA and kind == "Q4_0":
        return source
    words = [str(source), "--type", kind]
    return _made("requantize.py", "llama_cpp", where_requantized(model, kind), words, python)


def where_requantized(model: str, kind: str = "Q4_0") -> Path:
    """Where that lies once it is made."""
    return _cached(shipped(model), f"{kind}.gguf")


def folder(model: str, python: str) -> Path:
    """The same as a folder of float32 safetensors, written by transformers."""
    source = shipped(model)
    return _made("folder.py", "transformers", _cached(source, "float32"), [str(source)], python)


def cache() -> Path:
    """Where they are kept."""
    path = default_cache_dir() / "benchmarks"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _cached(source: Path, ending: str) -> Path:
    """A name that changes when the source does."""
    status = source.stat()
    state = f"{source.resolve()} {status.st_size} {status.st_mtime_ns}"
    return cache() / f"{source.stem}-{hashlib.sha256(state.encode()).hexdigest()[:12]}.{ending}"


def _made(script: str, module: str, target: Path, sources: list[str], python: str | None = None) -> Path:
    """Run the script unless its result is there; a run that is cut short leaves none."""
    if target.exists():
        return target
    python = python_with(module, python)
    if python is None:
        raise ScriptError(f"{script} needs a Python that has {module} (make test-env)")
    print(f"making {target}", file=sys.stderr)
    part = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        done = subprocess.run(
            [python, str(HERE / script), *sources, str(part)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ScriptError(f"{script}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        if not part.exists():
            raise ScriptError(f"{script}: {python} made no {target}")
        os.replace(part, target)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)
    return target
