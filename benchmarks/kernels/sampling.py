"""Milliseconds that drawing takes: the native sampler and the NumPy reference, on the same rows.

    python benchmarks/kernels/sampling.py [--rows 1,32] [--vocab 49152] [--isa avx2] [--json]

Logits are normal with standard deviation 3, about as steep as a small model's. Each figure is the
least of many interleaved calls, result objects included. Tokens are compared while it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from asked import above_zero, at_least_one, several, tells

from octavo.errors import OctavoError
from octavo.kernels.cpu import CpuBackend
from octavo.params import SamplingParams
from octavo.sampling import Sampler, SamplingRows
from octavo.sampling.native import make_sampler

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 0.8, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "top_k 50": {"top_k": 50},
    "top_k 50, top_p 0.95": {"top_k": 50, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "three penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
    "all of it": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.1, "logprobs": 5},
}


def measure(backend: CpuBackend, rows: int, vocab: int, case: dict[str, Any], seconds: float) -> list[float]:
    """[native ms, reference ms] of one call."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    state = SamplingRows(rows, vocab)
    for row in range(rows):
        state.add(row, SamplingParams(**case), row, 0, rng.integers(0, vocab, 200).tolist(), 100)
    batch = state.batch(range(rows), [200] * rows)
    both = [make_sampler(backend, vocab), Sampler()]
    assert both[0].sample(logits, batch) == both[1].sample(logits, batch), "the samplers disagree"
    best = [float("inf")] * 2
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, repeats in ((0, 10), (1, 1)):
            for _ in range(repeats):
                start = time.perf_counter()
                both[i].sample(logits, batch)
                best[i] = min(best[i], time.perf_counter() - start)
    return [1e3 * each for each in best]


@tells(OctavoError)
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=several(at_least_one), default=[1, 32])
    parser.add_argument("--vocab", type=at_least_one, default=49_152)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=at_least_one, default=2)
    parser.add_argument("--seconds", type=above_zero, default=0.5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    backend = CpuBackend(args.threads, args.isa)
    table = {
        rows: {name: measure(backend, rows, args.vocab, case, args.seconds) for name, case in CASES.items()}
        for rows in args.rows
    }
    if args.json:
        print(json.dumps({"isa": backend.isa, "settings": vars(args), "native_and_reference_ms": table}))
        return
    print(f"isa {backend.isa}, {args.threads} threads, vocabulary {args.vocab}; milliseconds a call")
    for rows, cases in table.items():
        print(f"{rows:>4} rows{'':24}{'native':>10}{'NumPy':>10}")
        for name, (ours, reference) in cases.items():
            print(f"     {name:28}{ours:10.3f}{reference:10.2f}")


if __name__ == "__main__":
    main()
