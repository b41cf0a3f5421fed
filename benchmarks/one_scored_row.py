"""What one row that asks for more costs a step of greedy ones: log-probabilities, penalties, a mask.

    .venv/bin/python benchmarks/one_scored_row.py [--wish logprobs] [--pairs 15] [--json] [--write]

Both crowds run in one process and take turns, A B B A: the streams all greedy, and the same with one of them
asking. A figure is the ratio of the two median steps of one pair; printed are the median of the pairs, its
95 % bootstrap interval, and the same of crowds that are both plain, which says what the machine adds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harness import report, usable_cores, write

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts

LIMIT = 1.02
PROMPT = 16
WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": 5},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "mask": {"allowed_token_ids": range(1000, 20_000)},
    "narrowed mask": {"allowed_token_ids": range(1000, 20_000), "temperature": 0.8, "top_p": 0.9},
}


def interval(ratios: Sequence[float], resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """The middle 95 % of the medians of resamples, each of as many ratios, drawn with repeats."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    edge = round(resamples * 0.025)
    return medians[edge], medians[-1 - edge]


def paired(first: Callable[[int], float], second: Callable[[int], float], pairs: int) -> list[float]:
    """second / first of each pair; who goes first takes turns. Each is told the number of the pair."""
    ratios = []
    for pair in range(pairs):
        if pair % 2:
            after, before = second(pair), first(pair)
        else:
            before, after = first(pair), second(pair)
        ratios.append(after / before)
    return ratios


def summary(ratios: Sequence[float]) -> dict[str, float]:
    low, high = interval(ratios)
    return {
        "median": round(statistics.median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "spread": round(max(ratios) / min(ratios), 4),
    }


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    streams = options.streams
    driver = Driver(
        options.model, threads=options.threads, max_num_seqs=streams, enable_prefix_caching=False,
        **options.options,
    )  # fmt: skip

    def step_of(wish: str) -> Callable[[int], float]:
        """Milliseconds of a crowd's median step while all decode."""

        def run(pair: int) -> float:
            prompts = random_prompts(streams, PROMPT, driver.vocab_size, pair)
            done = driver.run(prompts, options.new_tokens, WISHES[wish])
            return 1e3 * statistics.median(step.seconds for step in done.decode)

        return run

    plain = step_of("plain")
    plain(-1)  # what is learned and allocated once
    return {wish: summary(paired(plain, step_of(wish), options.pairs)) for wish in ("plain", *options.wish)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="one_scored_row")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--wish", action="append", choices=[name for name in WISHES if name != "plain"])
    parser.add_argument("--options", type=json.loads, default={}, help='such as {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/one_scored_row-*.json")
    options = parser.parse_args(arguments)
    options.wish = options.wish or [name for name in WISHES if name != "plain"]
    found = measure(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("one_scored_row", sys.argv, {"settings": settings, "limit": LIMIT, "ratios": found})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for wish, each in found.items():
            print(f"{wish:<16} {each['median']:.4f}  [{each['low']:.4f}, {each['high']:.4f}]")
        print(f"of {options.streams} streams; with the row over without it; should stay below {LIMIT}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
