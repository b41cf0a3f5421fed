"""Tables of what changes cost: benchmarks/paired.py, today's commit beside the one before a change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from figure_runs import Result, Row, Table

PAIRED = {
    "decode, 1 stream": "decode_1_ms", "decode, 32 streams": "decode_32_ms", "prompt": "prompt_ms",
    "host time": "host_us", "start-up": "start_up_s", "resident memory": "resident_mb",
}  # fmt: skip
PAIRED_HTTP = {"32 users over HTTP": "http_32_ms", "first token of one, over HTTP": "ttft_ms"}
"""What paired.py measures since servers have limits."""


def pair(label: str, figure: str, first: str, command: str) -> Row:
    """One figure of paired.py: B over A, a commit of twelve digits, and what two copies of A differ by."""
    path = f"figures/{figure}"
    return Row(
        label, "paired", (f"{path}/ratio/0", f"{path}/ratio/1", f"{path}/ratio/2", f"{path}/control/1",
                          f"{path}/control/2"),
        ("{0:.2f} ({1:.2f} to {2:.2f})", "{3:.2f} to {4:.2f}", "{0:.3f}"), command, most=1.01,
        only={"a": first}, detail=f"{path}/verdict", spread=partial(control_spread, figure),
    )  # fmt: skip


def control_spread(figure: str, result: Result) -> float:
    control = result["figures"][figure]["control"]
    return float(control[2] / control[1])


def pairs(first: str, second: str, figures: Mapping[str, str] = PAIRED) -> Table:
    """paired.py's figures of a commit, named by twelve digits, against the one it began from."""
    command = f"make paired A={first[:7]} B={second}"
    rows = tuple(pair(label, figure, first, command) for label, figure in figures.items())
    return Table(rows, columns=("B / A", "control", "median"), command=command, detail="verdict")


EVERY = {**PAIRED, **PAIRED_HTTP}
TABLES = {
    "seams": pairs("e9d8bdbb2282", "HEAD"),
    "words": pairs("3b40dd7503c8", "a7a36ab"),
    "since-limits": pairs("a7a36abbd962", "HEAD", EVERY),
    "since-rooms": pairs("90a8933e9da7", "HEAD", EVERY),
    "since-lessons": pairs("2496713ed7d0", "HEAD", EVERY),
}
"""By the names in the pages' marks; each is named by what came after its commit."""
