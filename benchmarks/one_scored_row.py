"""What one row that asks for more costs a step of greedy ones: log-probabilities, penalties, a mask.

    .venv/bin/python benchmarks/one_scored_row.py [--wish logprobs] [--repeat 24] [--json] [--write]

Crowds take turns in one process (arms.py): the streams all greedy, the same once more, and the same with one
of them asking. A figure is how much longer a step takes than the first crowd's, with its 95 % bootstrap
interval; "again" says what the machine adds. Apart is what a step spends more outside of its decoder's call,
as a share of the first crowd's step. Little of what else the machine does goes into that, and with AVX-512 it
is all that such a row can cost, as that call computes all rows' logits in any case. With AVX2 it computes
this row's beside the others' bounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from arms import Steps, in_turns, interval, ratio, typical
from asked import at_least_one, json_object, tells, with_own
from harness import report, usable_cores, write
from host_time import Watch

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.errors import OctavoError

LIMIT = 1.02
PROMPT = 16
WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "again": {},
    "logprobs": {"logprobs": 5},
    "details": {"logprobs": 0},  # of TGI, and each of its streams
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "mask": {"allowed_token_ids": range(1000, 20_000)},
    "narrowed mask": {"allowed_token_ids": range(1000, 20_000), "temperature": 0.8, "top_p": 0.9},
}


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """wish -> by how much its one row makes a step longer; "again" is the control, two crowds without it."""
    watch = Watch()
    with watch.patched():
        driver = Driver(
            options.model,
            **with_own(
                options.options, threads=options.threads, max_num_seqs=options.streams,
                enable_prefix_caching=False,
            ),
        )  # fmt: skip
    (watched,) = watch.decoders
    apart: dict[str, list[list[float]]] = {}

    def arm(name: str) -> Callable[[int], list[float]]:
        """Seconds of the steps in which all decode."""

        def run(repetition: int) -> list[float]:
            prompts = random_prompts(options.streams, PROMPT, driver.vocab_size, repetition)
            done = driver.run(prompts, options.new_tokens, WISHES[name])
            seconds = [step.seconds for step in done.decode]
            if repetition:
                apart.setdefault(name, []).append(outside(seconds, watched.log))
            return seconds

        return run

    steps = in_turns({name: arm(name) for name in ("plain", "again", *options.wish)}, options.repeat)
    plain = steps.pop("plain")
    beside = {name: np.array(each) for name, each in apart.items()}
    return {
        name: {**summary(each, plain), "apart": round(added(beside[name], beside["plain"], plain), 4)}
        for name, each in steps.items()
    }


def outside(seconds: Sequence[float], log: Sequence[tuple[float, float, float]]) -> list[float]:
    """What each of the last steps spent outside of its decoder's call.

    Args:
        log: of every step so far (its end, seconds of all forwards until then, of all draws).
    """
    native = np.diff([forward + drawing for _, forward, drawing in log[-len(seconds) - 1 :]])
    return [float(each) for each in np.array(seconds) - native]


def added(outside: Steps, plain_outside: Steps, plain: Steps) -> float:
    """What a step spends more there than a plain one, as a share of the plain one."""
    return (typical(outside) - typical(plain_outside)) / typical(plain)


def summary(steps: Steps, plain: Steps) -> dict[str, float]:
    low, high = interval(steps, plain)
    return {"ratio": round(ratio(steps, plain), 4), "low": round(low, 4), "high": round(high, 4)}


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="one_scored_row")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=at_least_one, default=32)
    parser.add_argument("--new-tokens", type=at_least_one, default=48)
    parser.add_argument("--repeat", type=at_least_one, default=24, help="of all crowds")
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--wish", action="append", choices=[name for name, wish in WISHES.items() if wish])
    parser.add_argument("--options", type=json_object, default={}, help='such as {"isa": "avx2"}')
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
            print(
                f"{wish:<16} {each['ratio']:.4f}  [{each['low']:.4f}, {each['high']:.4f}]"
                f"  apart {100 * each['apart']:.2f} %"
            )
        print(f"of {options.streams} streams; with the row over without it; should stay below {LIMIT}")
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
