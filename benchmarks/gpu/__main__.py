"""`make gpu-check`: correctness on the device, then the table; results to benchmarks/results.

    PYTHONPATH=src:benchmarks python3 -m gpu [--device cuda] [--dtype bfloat16] [--no-write]
    PYTHONPATH=src:benchmarks python3 -m gpu --dry          all of it on a CPU, in tiny shapes

Needs numpy, torch and triton (transformers for its row alone) and this source tree; no extension, no
network, and weights only for the check of a real model's text (--model, whole or in pieces). Exits with
1 where a check fails; a row of the table that is missed is printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

MOST_JOBS = 16
"""Processes at once: each holds some of the GPU's memory."""

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if given.dry:
        given.device, given.dtype = "cpu", "float32"
    from octavo.errors import OctavoError
    from octavo.kernels.cuda.device import choose
    from octavo.kernels.cuda.launch import prepare

    small = given.device == "cpu"
    try:
        device = choose(given.device, "auto").device
        prepare(interpret=small)
    except OctavoError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    from gpu import speed

    words = sys.argv[1:] if arguments is None else arguments
    result: dict[str, Any] = {"benchmark": "gpu", **origin(device, words), "dtype": given.dtype}
    until = time.monotonic() + given.minutes * 60
    path = None if given.no_write else place(result)
    found: Iterable[Any] = ()
    if not given.table_only:
        found = all_checks(given, device, result)
    if given.model:
        from gpu import text

        found = itertools.chain(text.text(device, given.model, 2 if small else 32), found)
    failed = run_checks(kept(found, result, path), result, given.brief)
    scale = speed.SMALL if small else speed.REAL
    rows = [] if given.checks_only else speed.table(device, given.dtype, scale, until, given.batching)
    result["table"] = []
    save(result, path)
    for row in rows:
        value = "-" if row.value is None else f"{row.value:.3f}"
        mark = {None: "failed", True: "", False: "missed"}[row.met]
        if row.note.startswith(speed.NOT_RESOLVED):
            mark = ""
        print(f"{row.work:<66} {value:>10} {row.unit:<8} {row.wanted:<6g} {mark:<7} {row.note}", flush=True)
        result["table"].append(
            {"work": row.work, "unit": row.unit, "value": row.value, "wanted": row.wanted, "met": row.met,
             "note": row.note}
        )  # fmt: skip
        save(result, path)  # so that a machine that is taken away leaves what it has measured
    if not (small or given.tiny or given.table_only):
        failed += sanitized(device, given.dtype, result)
        save(result, path)
    if path is not None:
        print(path)
    return 1 if failed else 0


def all_checks(given: argparse.Namespace, device: str, result: dict[str, Any]) -> Iterator[Any]:
    """Every part's: in processes of their own, several at once, or one after another in this process. What
    is left out is noted, and said. Under a sanitizer the kernels alone."""
    from gpu import checks, parts

    small = given.device == "cpu" or given.tiny
    if given.tiny:
        yield from checks.all_checks(device, given.dtype, small)
        return
    jobs = given.jobs or (1 if small else min(os.cpu_count() or 1, MOST_JOBS))
    every = parts.names(device, given.dtype, small)
    where = device, given.dtype, small
    lines = (
        parts.at_once(every, lambda name: parts.command(name, *where), jobs)
        if jobs > 1
        else (line for name in every for line in parts.lines(name, *where))
    )
    result["left_out"] = []
    for line in lines:
        if (why := line.get("left_out")) is not None:
            result["left_out"].append(why)
            print(f"-    left out: {why}", flush=True)
        else:
            yield line["what"], line["error"], line["allowed"]


def kept(found: Iterable[Any], result: dict[str, Any], path: Path | None) -> Iterator[Any]:
    """The same checks; after each, what is known is in the file."""
    for check in found:
        yield check
        save(result, path)


def run_checks(found: Any, result: dict[str, Any], brief: bool) -> int:
    """Print what is wrong; note all. Returns how many failed."""
    result["checks"], failed = [], 0
    for number, (what, error, allowed) in enumerate(found):
        good = error <= allowed
        failed += not good
        result["checks"].append({"what": what, "error": error, "allowed": allowed, "ok": good})
        if not good or not brief:
            print(f"{'ok  ' if good else 'FAIL'} {what}: {error:.2e} of {allowed:.2e}", flush=True)
        if brief and number >= 5:
            break
    print(f"{len(result['checks'])} checks, {failed} failed", flush=True)
    return failed


def sanitized(device: str, dtype: str, result: dict[str, Any]) -> int:
    """compute-sanitizer, where it is installed. Returns how many of its tools found something."""
    from gpu import sanitize

    result["sanitizer"] = []
    for tool, clean, note in sanitize.sanitize(sanitize.find(), device, dtype):
        print(f"{ {True: 'ok  ', False: 'FAIL', None: '-   '}[clean] } {tool}: {note}", flush=True)
        result["sanitizer"].append({"tool": tool, "clean": clean, "note": note})
    return sum(one["clean"] is False for one in result["sanitizer"])


def origin(device: str, words: Sequence[str]) -> dict[str, Any]:
    """What a reader needs in order to judge a figure: what ran, of which commit, where."""
    import torch
    import triton

    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        **commit(),
        "command": f"PYTHONPATH=src:benchmarks python3 -m gpu {shlex.join(words)}".rstrip(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": device,
    }
    if device != "cpu":
        p = torch.cuda.get_device_properties(device)
        facts["gpu"] = {
            "name": p.name, "capability": f"{p.major}.{p.minor}", "multiprocessors": p.multi_processor_count,
            "memory_gb": round(p.total_memory / 1e9, 1), "cuda": torch.version.cuda,
        }  # fmt: skip
    return facts


def commit() -> dict[str, Any]:
    """The checkout's, "+" where tracked files differ. Where the tree is a copy that git knows nothing of,
    what OCTAVO_COMMIT tells, marked as told, or "unknown"."""
    from harness import commit as of_the_checkout

    found = of_the_checkout() if shutil.which("git") and (ROOT / ".git").exists() else "unknown"
    told = os.environ.get("OCTAVO_COMMIT", "")
    if found == "unknown" and told:
        return {"commit": told, "commit_told": True}
    return {"commit": found}


def place(result: dict[str, Any]) -> Path:
    """A new file in benchmarks/results, beside what is there already."""
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    stem = f"gpu-{result['date'][:10]}-{result['commit'].rstrip('+')}"
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    path.touch()
    return path


def save(result: dict[str, Any], path: Path | None) -> None:
    """What is known so far."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="gpu-check", description="Check and measure Octavo on a GPU.")
    made.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu: tiny sizes, interpreted")
    made.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    made.add_argument(
        "--dry", action="store_true", help="try the whole script: --device cpu, f32, no figures"
    )
    made.add_argument(
        "--model", type=Path, nargs="+", metavar="FILE",
        help="a GGUF file, or its pieces in order: its greedy text is compared with NumPy's",
    )  # fmt: skip
    made.add_argument("--checks-only", action="store_true", help="no table")
    made.add_argument("--table-only", action="store_true", help="no checks")
    made.add_argument(
        "--minutes",
        type=float,
        default=7.0,
        help="no row of the table begins later (7: the whole takes under 9)",
    )
    made.add_argument(
        "--batching", action="store_true", help="a row against transformers' continuous batching (a minute)"
    )
    made.add_argument("--tiny", action="store_true", help="checks in tiny shapes (what sanitizers run)")
    made.add_argument("--brief", action="store_true", help="only the first few checks (to try the script)")
    made.add_argument(
        "--jobs", type=int, metavar="N", help="parts of the checks at once (a process each; 1: in this one)"
    )
    made.add_argument("--no-write", action="store_true", help="no result file")
    return made


if __name__ == "__main__":
    sys.exit(main())
