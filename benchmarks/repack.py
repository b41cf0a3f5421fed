"""Would a cache of repacked weights start Octavo sooner? What it would save, and what it would cost.

    .venv/bin/python benchmarks/repack.py [--model smollm2] [--repeat 5] [--json] [--write]

Loading the weights: reading the mapped file and repacking it, on all threads. A cache that is never trusted
without its check would instead have to hash what it holds (SHA-256 here, in pieces, on all threads) and bring
it to memory; both are measured on a file of the packed weights' size that is in the system's cache, as the
checkpoint is: the best that it could meet.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from asked import at_least_one, tells
from harness import report, usable_cores, write

from octavo.assembly import load
from octavo.engine_args import EngineArgs
from octavo.errors import OctavoError

PIECE = 8 << 20


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def hashed(path: Path, threads: int) -> None:
    """SHA-256 of every piece: the lock is free while one is hashed."""
    with mapped(path) as file, memoryview(file) as view, ThreadPoolExecutor(threads) as pool:
        pieces = [view[at : at + PIECE] for at in range(0, len(view), PIECE)]
        list(pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces))
        for piece in pieces:
            piece.release()


def copied(path: Path) -> None:
    """To memory of its own, as weights in huge pages want it."""
    data = np.memmap(path, np.uint8, "r")
    np.copyto(np.empty_like(data), data)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Medians in milliseconds."""
    weights, hashing, copying, nbytes = [], [], [], 0
    for _ in range(options.repeat):
        phases: dict[str, float] = {}
        loaded = load(EngineArgs(options.model, threads=options.threads).config, phases.__setitem__)
        nbytes = loaded.memory.weights
        weights.append(phases["weights"])
        del loaded
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "packed"
        path.write_bytes(np.random.default_rng(0).bytes(nbytes))
        for _ in range(options.repeat):
            hashing.append(seconds(lambda: hashed(path, options.threads)))
            copying.append(seconds(lambda: copied(path)))
    rows = {"load_and_repack_ms": weights, "hash_packed_ms": hashing, "copy_packed_ms": copying}
    medians = {name: round(1e3 * statistics.median(values), 1) for name, values in rows.items()}
    return {"packed_mb": round(nbytes / 1e6, 1), **medians}


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="repack")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeat", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/repack-*.json")
    options = parser.parse_args(arguments)
    found = measure(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("repack", sys.argv, {"settings": settings, "found": found})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:<20}{value:>10}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
