"""What it gains that workers begin a lone stream's next step before it is asked for (decision 45).

    .venv/bin/python benchmarks/ahead.py [--contexts 64,2048] [--options '{"isa": "avx2"}'] [--json] [--write]

One engine, in one process, that is told at each step by lot whether they may: two processes would differ by
where in memory their pages lie. A step's time is from its token to the next one; the figures are medians of
those steps before which workers might begin, whether or not a page began there, and of the others.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from asked import at_least_one, checked, json_object, several, tells, with_own
from harness import report, usable_cores, write
from host_time import sampling

from octavo.bench.driver import Driver
from octavo.bench.workload import random_prompts
from octavo.errors import OctavoError

WARM_UP, LEAST = 10, 60
"""Steps of a run that do not count, and how many there are at least."""


def breakdown(steps: Sequence[tuple[bool, float]]) -> dict[str, float]:
    """Of (whether workers might begin it, seconds) of each step: medians in ms, and their ratio."""
    sides = [[1e3 * seconds for begun, seconds in steps if begun is side] for side in (False, True)]
    plain, ahead = (statistics.median(side) for side in sides)
    return {
        "plain_ms": round(plain, 4), "ahead_ms": round(ahead, 4), "ratio": round(ahead / plain, 4),
        "plain_steps": len(sides[0]), "ahead_steps": len(sides[1]),
    }  # fmt: skip


def measure(driver: Driver, decoder: Any, context: int, options: argparse.Namespace) -> dict[str, float]:
    """Steps after so many tokens, of all repetitions."""
    lots, steps = random.Random(context), list[tuple[bool, float]]()
    taken = decoder.taken_up
    for repetition in range(options.repeat):
        told: list[tuple[bool, float]] = []  # after each token: whether workers begin the next step, and when

        def after_step(_: object, told: list[tuple[bool, float]] = told) -> None:
            told.append((decoder.ahead, time.perf_counter()))
            decoder.ahead = lots.random() < 0.5

        prompts = random_prompts(1, context, driver.vocab_size, repetition)
        driver.run(prompts, options.new_tokens, watch=after_step, **options.sampling)
        pairs = list(pairwise(told))[WARM_UP:]
        steps += [(begun, end - start) for (begun, start), (_, end) in pairs]
    return {**breakdown(steps), "taken_up": decoder.taken_up - taken}


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="ahead")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--contexts",
        type=checked(several(at_least_one)),
        default="64,2048,7400",
        help="tokens of the prompts, apart by commas",
    )
    parser.add_argument("--new-tokens", type=at_least_one, default=400)
    parser.add_argument("--repeat", type=at_least_one, default=2)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--sampling", type=sampling, default={}, help='{"temperature": 0.8, "top_p": 0.95}')
    parser.add_argument("--options", type=json_object, default={}, help='such as {"isa": "avx2"}')
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/ahead-*.json")
    options = parser.parse_args(arguments)
    if options.new_tokens < LEAST:
        parser.error(f"--new-tokens must be at least {LEAST}")
    try:
        contexts = [int(context) for context in options.contexts.split(",")]
        driver = Driver(
            options.model,
            **with_own(options.options, threads=options.threads, max_num_seqs=1, enable_prefix_caching=False),
        )
        runner: Any = driver.loaded.runner
        decoder = runner._decoding.decoder.native
        found = {str(context): measure(driver, decoder, context, options) for context in contexts}
    except (OctavoError, ValueError) as error:
        parser.error(str(error))
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "write")}
    result = report("ahead", sys.argv, {"settings": settings, "contexts": found})
    print(json.dumps(result, indent=2) if options.json else "\n".join(lines(found)))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


def lines(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each context."""
    return [
        f"after {context} tokens: {each['plain_ms']:.3f} ms a step, {each['ahead_ms']:.3f} where workers may"
        f" begin it: {each['ratio']:.3f}; {each['taken_up']:.0f} steps were taken up"
        for context, each in found.items()
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
