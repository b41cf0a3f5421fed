"""Two runs of `octavo bench compare` one after the other: do they agree within the spread that they print?

    .venv/bin/python benchmarks/compare_twice.py [SERVER ...] [--rounds 5] [--json] [--write]

SERVER is what compare takes: an address, or KIND:MODEL to start one; without any, two Octavo servers of
SmolLM2, one of them with a single thread. Two medians agree where the higher one over the lower one is at
most the larger of the spreads (highest over lowest of the rounds) that the two runs print beside them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from asked import at_least_one
from harness import conclude, report

TWO = ("octavo=octavo:smollm2", "one-thread=octavo:smollm2", "--peer-flags", "one-thread=--threads 1")


def compared(words: Sequence[str], asked: argparse.Namespace) -> dict[str, Any]:
    """What one run says.

    Raises:
        SystemExit: it measured nothing.
    """
    lengths = ["--random-input-len", str(asked.input_len), "--random-output-len", str(asked.output_len)]
    load = ["--num-prompts", str(asked.requests), "--max-concurrency", str(asked.users), "--ignore-eos"]
    command = [sys.executable, "-m", "octavo", "bench", "compare", *words, *load, *lengths]
    done = subprocess.run(
        [*command, "--rounds", str(asked.rounds), "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"octavo bench compare: {done.stderr.strip() or done.stdout.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def figures(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each figure of each server that both runs have measured."""
    lines = []
    for one, other in zip(first["servers"], second["servers"], strict=True):
        for name, median in one["medians"].items():
            again = other["medians"][name]
            if median is None or again is None:
                continue
            values = (median["value"], again["value"])
            apart, spread = max(values) / min(values), max(median["spread"], again["spread"])
            lines.append(
                {
                    "server": one["name"], "figure": name, "first": round(values[0], 2),
                    "second": round(values[1], 2), "apart": round(apart, 4), "spread": round(spread, 4),
                    "agree": apart <= spread,
                }
            )  # fmt: skip
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="compare_twice", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers", nargs="*", metavar="SERVER")
    parser.add_argument("--requests", type=at_least_one, default=16, help="in a round")
    parser.add_argument("--users", type=at_least_one, default=4)
    parser.add_argument("--input-len", type=at_least_one, default=64)
    parser.add_argument("--output-len", type=at_least_one, default=32)
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/compare_twice-*.json")
    asked = parser.parse_args(arguments)
    words = asked.servers or TWO
    runs = [compared(words, asked) for _ in range(2)]
    lines = figures(*runs)
    settings = {name: value for name, value in vars(asked).items() if name not in ("json", "write")}
    noise = max(each["noise"] for each in runs)
    result = report(
        "compare_twice", sys.argv, {"settings": settings, "noise": noise, "figures": lines, "runs": runs}
    )
    shown = [f"{'':<28}{'first':>10}{'second':>10}{'apart':>8}{'spread':>8}"]
    for each in lines:
        name, values = f"{each['server']} {each['figure']}", (each["first"], each["second"])
        shown.append(
            f"{name:<28}{values[0]:>10}{values[1]:>10}{each['apart']:>8.3f}{each['spread']:>8.3f}"
            f"{'' if each['agree'] else '  apart'}"
        )
    return conclude(result, shown, not all(each["agree"] for each in lines), asked.json, asked.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
