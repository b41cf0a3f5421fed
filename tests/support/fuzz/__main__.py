"""See the package's docstring. Goes on where the state says; exits with 1 where there are faults."""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from support.fuzz.campaign import Campaign
from support.fuzz.registry import TARGETS

ROOT = Path(__file__).resolve().parents[3]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz the parsers.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all; 2 %% are whole loads")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz", help="folder to go on from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help=f"some of {','.join(TARGETS)}")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after so many, by the clock"
    )
    parser.add_argument("--keep", action="store_true", help="add what was found to the corpus")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    chosen = {name: TARGETS[name] for name in options.only.split(",") if name} or TARGETS
    campaign = Campaign(
        chosen, options.inputs, options.state, options.seed,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    if commit and commit not in campaign.commits:
        campaign.commits.append(commit)
    end = time.monotonic() + options.seconds
    campaign.run(lambda: time.monotonic() > end)
    campaign.save()
    if options.keep:
        campaign.keep()
    result = campaign.result()
    for name, books in campaign.books.items():
        for key, fault in books.faults.items():
            data = base64.b64decode(fault["data"])
            print(f"FAULT {name} {key} ({fault['count']} times)\n   {data[:400]!r}", file=sys.stderr)
    if options.json:
        print(json.dumps(result))
    else:
        for name, said in result["targets"].items():
            print(f"{name:12} {said}")
        print(f"{result['inputs']:,} inputs, {result['loads']:,} whole loads, {result['faults']} faults")
    return int(bool(result["faults"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
