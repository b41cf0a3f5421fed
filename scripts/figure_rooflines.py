"""Rows of one machine beside what memory and arithmetic allow: rooflines, and kernels without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from figure_runs import At, Result, Row, value_at

ROOFLINE = "octavo bench roofline smollm2"


def roofline(field: str, work: str = "decode", size: int = 1, context: range = range(64)) -> At:
    """Of the roofline's line of this work, whose mean context lies in that range."""

    def find(result: Result) -> Any:
        for line in result["result"]["lines"]:
            if (line["work"], line["size"]) == (work, size) and line["context"] in context:
                return line.get(field)
        return None

    return find


def at_context(tokens: int) -> Row:
    """Decoding of one stream after so many tokens, beside what memory and the kernels in a cache allow."""
    fields = ("share", "rate", "bound_rate", "limit", "bandwidth_share", "bandwidth")
    return Row(
        f"SmolLM2, 1 stream at {tokens:,} tokens, int16 KV: share of what memory and one row's kernels allow",
        "roofline-smollm2",
        tuple(roofline(field, context=range(tokens, tokens + 64)) for field in fields),
        ("{0:.0%}: {1:.0f} of {2:.0f} tok/s ({3}); {4:.0%} of the memory's {5:GB} a second",), ROOFLINE,
        least=0.85, bound="{:.0%}", range="{0:.0%}",
        spread=roofline("bound_spread", context=range(tokens, tokens + 64)),
    )  # fmt: skip


def kernels_alone(
    tokens: int, share: str, fields: Sequence[str], text: str, least: float | None = None
) -> Row:
    """The same step without an engine, its share of something."""
    return Row(
        f"its kernels alone, with all logits, at {tokens:,} tokens, int16 KV: share of {share}", "pieces",
        tuple(f"contexts/{tokens}/{field}" for field in fields), (text,),
        "benchmarks/kernels/pieces.py --write", least=least, bound="{:.0%}",
        only={"settings/kv_dtype": "int16", "settings/model": "smollm2"},
        spread=f"contexts/{tokens}/unrest", range="{0:.0%}",
    )  # fmt: skip


def in_pieces(tokens: int) -> Row:
    """Its pieces one after the other: each takes its reading or its arithmetic at least.

    Pieces are timed apart from the step. Where others had the machine in between, a piece took less by itself
    than it is said to take at least: then what is lost within pieces, and between them, is not resolved.
    """

    def lost(result: Result) -> Any:
        found = value_at(result, f"contexts/{tokens}")
        if found is None:
            return None
        within, between = found["within"], found["between"]
        if within < 0 or between < 0:
            return "where the rest is lost is not resolved"
        return f"lost within pieces {100 * within:.0f} %, between them {100 * between:.0f} %"

    row = kernels_alone(
        tokens, "the sum of its pieces' least times (of the roofline)",
        ("pieces_share", "least_us", "step_us", "roofline_share"),
        "{0:.0%} ({3:.0%}): {1:,.0f} of {2:,.0f} us; {4}",
    )  # fmt: skip
    return replace(row, at=(*row.at, lost))


def in_order(tokens: int) -> Row:
    """What memory gives to its reads in their order, nothing computed."""
    share = "what the same reads take, in their order and with the step's waits, nothing computed"
    return kernels_alone(
        tokens, share, ("ordered_share", "ordered_us"), "{0:.0%} (these reads alone: {1:,.0f} us)", 0.85
    )


def worked(tokens: int) -> Row:
    """The same reads with as much arithmetic in the simplest loop."""
    fields = ("worked_share", "worked_us", "worked_roofline_share")
    text = "{0:.0%} (these reads: {1:,.0f} us, whose share of the roofline is {2:.0%})"
    return kernels_alone(
        tokens, "what the same reads take with as much arithmetic in the simplest loop", fields, text
    )


def engine_beside(tokens: int) -> Row:
    """An engine's whole step in the same process and the same turns."""
    fields = ("engine_roofline_share", "engine_us", "engine_over_step")
    return Row(
        f"an engine beside these kernels, in one process, at {tokens:,} tokens: share of its own roofline",
        "pieces", tuple(f"contexts/{tokens}/{field}" for field in fields),
        ("{0:.0%}: {1:,.0f} us a step, {2:.0%} of the kernels'",), "benchmarks/kernels/pieces.py --write",
        least=0.85, bound="{:.0%}", only={"settings/kv_dtype": "int16", "settings/model": "smollm2"},
        spread=f"contexts/{tokens}/unrest", range="{0:.0%}",
    )  # fmt: skip


def only_reading(tokens: int) -> Row:
    """The same engine beside one whose kernels compute nothing, and read what they would compute with."""
    fields = ("reading_share", "reading_us", "reading_roofline_share")
    return Row(
        f"that engine at {tokens:,} tokens: share of what its reads alone take, in its phases",
        "pieces", tuple(f"contexts/{tokens}/{field}" for field in fields),
        ("{0:.0%} (these reads: {1:,.0f} us, whose share of the roofline is {2:.0%})",),
        "benchmarks/kernels/pieces.py --write", least=0.85, bound="{:.0%}",
        only={"settings/kv_dtype": "int16", "settings/model": "smollm2"},
        spread=f"contexts/{tokens}/unrest", range="{0:.0%}",
    )  # fmt: skip


LONG_STEP = (at_context, in_pieces, in_order, worked, engine_beside, only_reading)
"""Rows of one stream's step after many tokens, each for a number of them."""


def of_bound(label: str, work: str, size: int) -> Row:
    """Work that waits for arithmetic, beside what the tile's own rate would allow."""
    fields = ("share", "rate", "bound_rate", "limit")
    return Row(
        f"SmolLM2, {label}: share of what the machine allows", "roofline-smollm2",
        tuple(roofline(field, work, size, range(1024)) for field in fields),
        ("{0:.0%}: {1:rate} of {2:rate} tok/s ({3})",), ROOFLINE, range="{0:.0%}",
        spread=roofline("bound_spread", work, size, range(1024)),
    )  # fmt: skip
