"""What drafts of a smaller model, and of a model's own first layers, gain, beside what a formula says.

    .venv/bin/python benchmarks/draft_models.py TARGET.gguf DRAFTER.gguf [--prompts FILE] [--write]

A drafter's forward takes the share c of a step of the target, and each of its tokens is right with the chance
a, the one after it as well. A step that verifies k of them takes c_v times a plain one. So it is to gain

    (1 - a^(k+1)) / (1 - a) / (c_v + k c)         and gains at all from that a on where this is 1

Each number of tokens is measured with "fixed", then what "auto" makes of it. a, c and c_v are the run's own
(octavo bench speculate prints them for one configuration); the formula's gain stands beside the measured one,
and beside the one over answers that do not loop. TARGET alone measures its first layers only. A file that is
not there is said, in one line, and nothing is measured. Give it the machine alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asked import at_least_one, not_negative, several, tells
from harness import report, usable_cores, write

from octavo.bench.speculate import Speculated, Speculating, conversations, speculate
from octavo.errors import OctavoError

SEARCHED = 200
"""Parts of 1 in which the least acceptance that gains is looked for."""


def formula(a: float, k: int, c: float, c_v: float) -> float:
    """The gain of k drafted tokens a step."""
    tau = sum(a**place for place in range(k + 1))
    return tau / (c_v + k * c)


def least_acceptance(k: int, c: float, c_v: float) -> float | None:
    """From which acceptance on that is a gain; None: not even if all are right."""
    every = (part / SEARCHED for part in range(SEARCHED + 1))
    return next((a for a in every if formula(a, k, c, c_v) >= 1), None)


def row_of(method: str, k: int | None, found: Speculated) -> dict[str, Any]:
    """Figures of one run. k: None where the policy chose it: then there is no formula."""
    row = {
        "row": f"{method}, {'auto' if k is None else k}",
        "method": method, "k": k, "prompts": found.prompts, "step_ms": found.step_ms,
        "measured": found.measured, "unrepeated": found.unrepeated, "predicted": found.predicted,
        "tau": found.tau, "drafting": found.drafting, "accepted_at": list(found.accepted_at),
        "steps": [dataclasses.asdict(line) for line in found.steps],
    }  # fmt: skip
    whole = [line for line in found.steps if line.drafted == k]
    if k is None or not whole or not found.accepted_at:
        return row
    a, c, c_v = found.accepted_at[0], found.c_d / k, whole[0].c_v
    told = {"a": a, "c": c, "c_v": c_v, "formula": formula(a, k, c, c_v)}
    return row | told | {"gains_from": least_acceptance(k, c, c_v)}


def configurations(
    drafter: str | None, ks: Sequence[int]
) -> Iterator[tuple[str, int | None, dict[str, Any]]]:
    """(method, its number of tokens or None, speculative_config)."""
    methods: dict[str, dict[str, Any]] = {"self": {"method": "self"}}
    if drafter is not None:
        methods["draft"] = {"method": "draft_model", "model": drafter}
    for method, config in methods.items():
        for k in ks:
            yield method, k, {**config, "num_speculative_tokens": k, "policy": "fixed"}
        yield method, None, {**config, "num_speculative_tokens": max(ks)}


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = ("a", "c", "c_v", "gains_from", "formula", "measured", "unrepeated", "drafting")
    yield f"{'':12}" + "".join(f"{head:>12}" for head in heads)
    for row in rows:
        shown = ("-" if row.get(head) is None else f"{row[head]:.3f}" for head in heads)
        yield f"{row['row']:12}" + "".join(f"{each:>12}" for each in shown)


def missing(names: Sequence[str]) -> list[str]:
    """Of names of models those that are files, and are not there."""
    return [name for name in names if name.endswith(".gguf") and not Path(name).expanduser().exists()]


@tells(OctavoError)
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="draft_models", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("drafter", nargs="?")
    parser.add_argument("--prompts", type=Path, help="JSON lines with prompt, messages or turns")
    parser.add_argument("--limit", type=at_least_one, default=8, help="take so many of them")
    parser.add_argument("--tokens", type=several(at_least_one), default=[1, 2, 4])
    parser.add_argument("--methods", default="self,draft")
    parser.add_argument("--max-tokens", type=at_least_one, default=64)
    parser.add_argument("--temperature", type=not_negative, default=0.0)
    parser.add_argument("--threads", type=at_least_one, default=usable_cores())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/draft_models-*.json")
    options = parser.parse_args(arguments)
    if absent := missing([options.target, *filter(None, [options.drafter])]):
        print(f"draft_models: skipped, there is no {', '.join(absent)}")
        return 0
    talks = conversations(options.prompts)[: options.limit]
    engine = {"max_num_seqs": 1, "max_model_len": 2048, "threads": options.threads}
    sampling = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    rows = []
    for method, k, config in configurations(options.drafter, options.tokens):
        if method in options.methods.split(","):
            found = speculate(Speculating(options.target, engine, config), talks, sampling)
            rows.append(row_of(method, k, found))
            print(rows[-1]["row"], f"{found.measured:.3f}", file=sys.stderr, flush=True)
    names = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name not in ("json", "write")
    }
    result = report("draft_models", sys.argv, {"settings": names, "rows": rows})
    print(json.dumps(result, indent=2) if options.json else "\n".join(lines(rows)))
    if options.write:
        print(f"wrote {write(result)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
