"""What `octavo plan --measure` predicts of decoding, beside what `octavo bench` measures, in turns.

    .venv/bin/python benchmarks/plan_beside.py [--models smollm2,gemma3-270m] [--rounds 5] [--json] [--write]

A round predicts each model at each batch, with steps of a stand-in for its weights, and measures it with the
engine, twice: what one of these has over the other is the control. Both are greedy, with a head that has
learned its bounds: the stand-in's before it is timed, the engine's in its first run, which warms up. Printed
are medians over the rounds, the prediction over what was measured, and the farthest that two measurements of
a round lie apart.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from asked import at_least_one, tells
from harness import conclude, in_rounds, report, usable_cores

from octavo.bench.driver import Driver
from octavo.bench.plan import plan_model
from octavo.bench.sweep import sweep
from octavo.bench.workload import spread
from octavo.cli._flags import EngineChoice
from octavo.cli._plan_speed import Target, speeds_of
from octavo.engine_args import EngineArgs
from octavo.errors import OctavoError

MOST_OFF = 0.2


def predicted(model: str, options: Mapping[str, Any], asked: argparse.Namespace) -> dict[int, float]:
    """Tokens a second by batch, as the command says them."""
    engine = EngineChoice(model, options)
    target = Target(
        measure=True, planned_prompt=asked.prompt_tokens, planned_answer=asked.max_tokens,
        planned_batches=asked.batch_sizes,
    )  # fmt: skip
    found = speeds_of(engine, target, None, plan_model(EngineArgs(model, **options).config))
    return {each.batch: each.rate for each in found.outlook.speeds}


def measured(driver: Driver, asked: argparse.Namespace) -> dict[int, float]:
    """Tokens a second by batch while all decode; a batch that never did so has none."""
    sizes = [int(word) for word in asked.batch_sizes.split(",")]
    found = sweep(driver, asked.prompt_tokens, asked.max_tokens, sizes, 1)
    return {line.batch: line.decode_rate for line in found.batches if line.decode_rate is not None}


def rounds(model: str, asked: argparse.Namespace) -> list[dict[str, dict[int, float]]]:
    """One prediction and two measurements a round; who begins changes."""
    options = {
        "max_num_seqs": max(int(word) for word in asked.batch_sizes.split(",")),
        "max_model_len": asked.prompt_tokens + asked.max_tokens + 1,
        "threads": asked.threads,
    }
    driver = Driver(model, **options, enable_prefix_caching=False)
    turns = {
        "predicted": lambda: predicted(model, options, asked),
        "measured": lambda: measured(driver, asked),
        "again": lambda: measured(driver, asked),
    }
    return in_rounds(turns, asked.rounds)


def rows(found: Sequence[Mapping[str, Mapping[int, float]]]) -> list[dict[str, Any]]:
    """A row for each batch.

    off: how far the prediction is from what was measured, as a part of that. control: the farthest that two
    measurements of a round lie apart, likewise. within: the prediction is as near as it should be; forbidden:
    it is not, and two measurements were not either.
    """
    lines = []
    every = [each[name] for each in found for name in ("predicted", "measured", "again")]
    for batch in sorted(set.intersection(*map(set, every))):
        guesses = [each["predicted"][batch] for each in found]
        pairs = [(each["measured"][batch], each["again"][batch]) for each in found]
        rates = [value for pair in pairs for value in pair]
        guess, rate = statistics.median(guesses), statistics.median(rates)
        off, control = abs(guess / rate - 1), max(max(pair) / min(pair) - 1 for pair in pairs)
        lines.append(
            {
                "batch": batch, "predicted": round(guess, 1), "measured": round(rate, 1),
                "ratio": round(guess / rate, 3), "off": round(off, 3), "control": round(control, 3),
                "spread": round(spread(rates), 3), "within": off <= MOST_OFF,
                "forbidden": off > MOST_OFF and control > MOST_OFF,
            }
        )  # fmt: skip
    return lines


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="plan_beside", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="smollm2,gemma3-270m")
    parser.add_argument("--batch-sizes", default="1,8,32")
    parser.add_argument("--prompt-tokens", type=at_least_one, default=64)
    parser.add_argument("--max-tokens", type=at_least_one, default=128)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/plan_beside-*.json")
    asked = parser.parse_args(arguments)
    models = {model: rows(rounds(model, asked)) for model in asked.models.split(",")}
    settings = {name: value for name, value in vars(asked).items() if name not in ("json", "write")}
    worst = max(row["off"] for each in models.values() for row in each)
    result = report("plan_beside", sys.argv, {"settings": settings, "worst": worst, "models": models})
    lines = [f"{'tok/s':<16}{'batch':>6}{'predicted':>11}{'measured':>10}{'ratio':>7}{'control':>9}"]
    for model, each in models.items():
        for row in each:
            lines.append(
                f"{model:<16}{row['batch']:>6}{row['predicted']:>11}{row['measured']:>10}{row['ratio']:>7}"
                f"{row['control']:>9.1%}{'' if row['within'] else '  off'}{' forbidden' * row['forbidden']}"
            )
    failed = any(not row["within"] and not row["forbidden"] for each in models.values() for row in each)
    return conclude(result, lines, failed, asked.json, asked.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
