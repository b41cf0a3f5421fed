"""Rates of the linear tiles: MAC per cycle and core at several M, and the share of bandwidth at M = 1.

    python benchmarks/kernels/tiles.py --isa avx2 --kinds u4-min,s8 --shape 2048x2048

Every figure is the best of several rounds in one process; the clock and the read bandwidth are
measured beside them. Weights at large M stay in the second-level cache; at M = 1 (stream) they are
512 MB of distinct matrices.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from asked import above_zero, at_least_one, several, tells

from octavo.errors import OctavoError
from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Inputs, Limits, Ops, Tensor
from octavo.kernels.weight import Weight
from support.kernels import CODED, LAYOUTS, random_weight, tokens_batch


def best_time(run: Callable[[], object], seconds: float) -> float:
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def chain(
    backend: CpuBackend, weights: list[Weight], repeats: int, k: int, rows: int
) -> Callable[[], object]:
    """A program of linears that all read one input."""
    table = backend.pack([Weight.dense(np.random.default_rng(0).standard_normal((50, k)).astype(np.float32))])
    packed = [backend.pack([w]) for w in weights]

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.embed(inputs, table)
        y = x
        for _ in range(repeats):
            for w in packed:
                y = ops.linear(x, w)
        return y

    program = backend.capture(forward, Limits(rows, 1, 1, rows))
    batch = tokens_batch(rows)
    return lambda: program.replay(batch)


def stream_rate(nbytes: int, seconds: float, bandwidth: float) -> tuple[float, float]:
    """(GB/s that were read, percent of the bandwidth)."""
    rate = nbytes / seconds
    return rate / 1e9, 100 * rate / bandwidth


def tile_rate(macs: int, seconds: float, threads: int, clock: float) -> tuple[float, float]:
    """(GMAC/s of a core, MAC of a core and cycle)."""
    rate = macs / seconds / threads
    return rate / 1e9, rate / clock


def kind_of(text: str) -> str:
    """A type of argparse: one of what random_weight makes."""
    if text not in (*LAYOUTS, *CODED):
        raise argparse.ArgumentTypeError(f"there is no {text!r}: {', '.join((*LAYOUTS, *CODED))}")
    return text


def shape(text: str) -> tuple[int, int]:
    """A type of argparse: NxK."""
    n, _, k = text.partition("x")
    return at_least_one(n), at_least_one(k)


@tells(OctavoError)
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=at_least_one, default=2)
    parser.add_argument("--kinds", type=several(kind_of), default="u4-min,u4,s8,f16,f32")
    parser.add_argument("--shape", type=shape, default="2048x2048")
    parser.add_argument(
        "--rows", type=several(at_least_one), default=[1, 2, 3, 4, 6, 8, 12, 16, 32, 128, 512]
    )
    parser.add_argument("--seconds", type=above_zero, default=0.5)
    parser.add_argument("--stream", action="store_true", help="M = 1 over 512 MB of weights")
    args = parser.parse_args()
    backend = CpuBackend(args.threads, args.isa)
    n, k = args.shape
    rng = np.random.default_rng(0)
    bandwidth = _native.read_bandwidth(backend.pool, 1 << 28, 8)
    print(f"isa {backend.isa}, {args.threads} threads, {bandwidth / 1e9:.1f} GB/s read")
    for kind in args.kinds:
        w = random_weight(rng, kind, n, k)
        if args.stream:
            count = max(1, (1 << 29) // w.nbytes)
            seconds = best_time(chain(backend, [w] * count, 1, k, 1), args.seconds * 4)
            rate, percent = stream_rate(count * w.nbytes, seconds, bandwidth)
            print(f"{kind:12} stream {rate:6.1f} GB/s = {percent:.0f} % of reads")
            continue
        for rows in args.rows:
            repeats = max(8, int(4e7 / (n * k * rows)))  # embedding is not what is measured
            seconds = best_time(chain(backend, [w], repeats, k, rows), args.seconds)
            rate, cycle = tile_rate(repeats * n * k * rows, seconds, args.threads, _native.clock_rate())
            print(f"{kind:12} M={rows:4} {rate:7.1f} GMAC/s/core {cycle:6.1f} MAC/cycle")


if __name__ == "__main__":
    main()
