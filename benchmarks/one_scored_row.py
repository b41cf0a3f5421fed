"""What one row that asks for more costs a step of greedy ones: log-probabilities, penalties, a mask.

    .venv/bin/python benchmarks/one_scored_row.py [--wish logprobs] [--repeat 24] [--json] [--write]

Crowds take turns in one process (arms.py): the streams all greedy, the same once more, and the same with one
of them asking. A figure is how much longer a step takes than the first crowd's, with its 95 % bootstrap
interval; "again" says what the machine adds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from arms import Steps, in_turns, interval, ratio
from harness import report, usable_cores, write

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts

LIMIT = 1.02
PROMPT = 16
WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "again": {},
    "logprobs": {"logprobs": 5},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "mask": {"allowed_token_ids": range(1000, 20_000)},
    "narrowed mask": {"allowed_token_ids": range(1000, 20_000), "temperature": 0.8, "top_p": 0.9},
}


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """wish -> by how much its one row makes a step longer; "again" is the control, two crowds without it."""
    driver = Driver(
        options.model, threads=options.threads, max_num_seqs=options.streams, enable_prefix_caching=False,
        **options.options,
    )  # fmt: skip

    def arm(wish: Mapping[str, Any]) -> Callable[[int], list[float]]:
        """Seconds of the steps in which all decode."""

        def run(repetition: int) -> list[float]:
            prompts = random_prompts(options.streams, PROMPT, driver.vocab_size, repetition)
            done = driver.run(prompts, options.new_tokens, wish)
            return [step.seconds for step in done.decode]

        return run

    wishes = {name: WISHES[name] for name in ("plain", "again", *options.wish)}
    steps = in_turns({name: arm(wish) for name, wish in wishes.items()}, options.repeat)
    plain = steps.pop("plain")
    return {name: summary(each, plain) for name, each in steps.items()}


def summary(steps: Steps, plain: Steps) -> dict[str, float]:
    low, high = interval(steps, plain)
    return {"ratio": round(ratio(steps, plain), 4), "low": round(low, 4), "high": round(high, 4)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="one_scored_row")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--repeat", type=int, default=24, help="of all crowds")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--wish", action="append", choices=[name for name, wish in WISHES.items() if wish])
    parser.add_argument("--options", type=json.loads, default={}, help='such as {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/one_scored_row-*.json")
    options = parser.parse_args(arguments)
    options.wish = options.wish or [name for name, wish in WISHES.items() if wish]
    found = measure(options)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("one_scored_row", sys.argv, {"settings": settings, "limit": LIMIT, "ratios": found})
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for wish, each in found.items():
            print(f"{wish:<16} {each['ratio']:.4f}  [{each['low']:.4f}, {each['high']:.4f}]")
        print(f"of {options.streams} streams; with the row over without it; should stay below {LIMIT}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
