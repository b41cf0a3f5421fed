"""Checks in parts, several at once: each part is a process, which compiles what it needs beside the others.

    python -m gpu.parts NAME --device cuda --dtype bfloat16 [--small]

The parts are those of gpu.checks, and "engine NAME" and "served NAME". A process prints a line of JSON for
each check, or one that says why its part is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from gpu.bare import environment

LIMIT_S = 300.0
"""Of a part; one that takes longer is ended, and has failed."""
WHOLE = ("engine", "served")


def names(device: str, dtype: str, small: bool) -> list[str]:
    """All parts, those first that take longest."""
    from gpu import checks, engine, served

    kernels = list(checks.parts(device, dtype, small))
    whole = [f"served {name}" for name in served.CHECKS] + [f"engine {name}" for name in engine.CHECKS]
    return whole + kernels


def left_out(name: str) -> str | None:
    """Why a part cannot run here; None: it can."""
    from gpu import engine, served

    kind, _, what = name.partition(" ")
    if kind not in WHOLE:
        return None
    return engine.lacks(what) if kind == "engine" else served.lacks(what)


def found_by(name: str, device: str, dtype: str, small: bool, folder: Path) -> Iterator[Any]:
    """The checks of one part, in this process."""
    from gpu import checks

    kind, _, what = name.partition(" ")
    if kind not in WHOLE:
        yield from checks.parts(device, dtype, small)[name]()
        return
    from gpu import engine, served
    from gpu.place import Place

    run: Callable[[str, Place], list[Any]] = engine.run if kind == "engine" else served.run
    yield from run(what, Place(device, dtype, folder, small))


def lines(name: str, device: str, dtype: str, small: bool) -> Iterator[dict[str, Any]]:
    """What the process of a part prints."""
    if (why := left_out(name)) is not None:
        yield {"left_out": f"{name}: {why}"}
        return
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        for what, error, allowed in found_by(name, device, dtype, small, Path(folder)):
            yield {"what": what, "error": float(error), "allowed": float(allowed)}


def command(name: str, device: str, dtype: str, small: bool) -> list[str]:
    words = [sys.executable, "-m", "gpu.parts", name, "--device", device, "--dtype", dtype]
    return [*words, "--small"] if small else words


def at_once(
    parts: Sequence[str], made: Callable[[str], Sequence[str]], jobs: int, limit_s: float = LIMIT_S
) -> Iterator[dict[str, Any]]:
    """The lines of all parts, each as its process ends. One that fails is a check that fails.

    Args:
        made: the command of a part. jobs: processes at once.
    """
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(one, name, made(name), limit_s) for name in parts]
        for done in as_completed(waiting):
            yield from done.result()


def one(name: str, words: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
    """What the process of a part said, and a failed check if it did not come to its end."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=limit_s, check=False, env=environment()
        )
    except subprocess.TimeoutExpired as error:
        said: Any = error.stdout or b""  # bytes, whatever was asked for
        said = said.decode(errors="replace") if isinstance(said, bytes) else said
        return [*read(said), failed(f"{name}: ran past {limit_s:g} s")]
    found = read(done.stdout)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        found.append(failed(f"{name}: ended with {done.returncode}: {last[:300]}"))
    elif not found:
        found.append(failed(f"{name}: checked nothing"))
    return found


def failed(what: str) -> dict[str, Any]:
    return {"what": what, "error": float("inf"), "allowed": 0.0}


def read(text: str) -> list[dict[str, Any]]:
    """The lines of JSON objects; others are a library's."""
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def main(arguments: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="gpu.parts", description="One part of the checks.")
    made.add_argument("name")
    made.add_argument("--device", default="cuda")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--small", action="store_true")
    given = made.parse_args(arguments)
    from octavo.kernels.cuda.launch import prepare

    prepare(interpret=given.device == "cpu")
    for line in lines(given.name, given.device, given.dtype, given.small):
        print(json.dumps(line), flush=True)
    sys.stdout.flush()
    if given.name == "engine device lost":
        os._exit(0)  # a lost device may hold the interpreter's end
    return 0


if __name__ == "__main__":
    sys.exit(main())
