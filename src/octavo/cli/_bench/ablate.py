"""octavo bench ablate: what each technique is worth on this machine."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from octavo.cli._bench import INTERRUPTED, Output, columns, machine
from octavo.cli._flags import NO_MATTER, EngineChoice, engine_flags, option_group
from octavo.cli._load import fetch

if TYPE_CHECKING:
    from octavo.bench.report.chart import Bars
    from octavo.bench.report.table import Table
    from octavo.lab.ablations import Line, Technique

NAME = "ablate"
QUICK_ROUNDS, ROUNDS = 1, 3
WIDTH = 100
"""Columns of sentences where no terminal says how wide it is."""
ONLY = typer.Option(None, "--only", help="Measure this row alone; may be given several times.")


@engine_flags(leave_out=NO_MATTER)
@option_group("output", Output)
def command(
    engine: EngineChoice,
    output: Output,
    only: list[str] | None = ONLY,
    list_rows: bool = typer.Option(False, "--list", help="Say what the rows are; nothing is measured."),
    quick: bool = typer.Option(False, "--quick", help="Small sizes and one round: about two minutes."),
    rounds: int | None = typer.Option(
        None, "--rounds", help="Repetitions of each side; medians are printed.  [default: 3, quick: 1]", min=1
    ),
    out: str = typer.Option("", "--out", help="The same as --plot OUT.json --plot OUT.png."),
) -> int:
    """Measure what each technique gains here: paging, caching, batching, fusion and more, one by one."""
    from octavo.lab.ablations import INTERRUPTED as CUT
    from octavo.lab.ablations import Setting, ablate, chosen

    rows = chosen(only or [])
    if list_rows:
        print_rows(rows, output.as_json)
        return 0
    files = [Path(f"{out}.json"), Path(f"{out}.png")] if out else []
    output = Output(output.as_json, [*(output.plot or []), *files])
    output.check()
    fetch(engine.model, output.as_json)
    repeat = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    setting = Setting(engine.model, engine.options, repeat, quick)

    def say(name: str, done: int, every: int) -> None:
        if not output.as_json:
            print(f"measuring {name} ({done + 1} of {every}) ...", file=sys.stderr, flush=True)

    lines = ablate(rows, setting, say)
    title = f"{engine.model}: what each technique is worth here, {repeat} rounds{', quick' if quick else ''}"
    body = {"model": engine.model, "rounds": repeat, "quick": quick, "machine": machine(), **body_of(lines)}
    output.show(title, [table_of(lines, title)], [chart for line in lines for chart in charts_of(line)], body)
    if not output.as_json:
        print("\n" + "\n\n".join(sentences(line) for line in lines))
    if any(line.not_measured == CUT for line in lines):
        return INTERRUPTED
    return 0 if any(line.found for line in lines) else 1


def print_rows(rows: Sequence[Technique], as_json: bool) -> None:
    """Names, claims and sources."""
    from octavo.bench.report.table import Table

    if as_json:
        print(json.dumps([{"name": r.name, "claim": r.claim, "source": r.source} for r in rows]))
        return
    cells = tuple((row.name, row.claim, row.source) for row in rows)
    print(Table(("row", "claim", "source"), cells).text(columns()))


def table_of(lines: Sequence[Line], title: str) -> Table:
    """A row for each technique: with it, without it, and how many times better."""
    from octavo.bench.report.table import NONE, Table

    rows = []
    for line in lines:
        if line.found is None:
            rows.append((line.row.name, NONE, NONE, NONE, "not measured"))
            continue
        (_, with_it), (_, without) = line.found.bars[:2]
        rows.append(
            (line.row.name, _figure(with_it), _figure(without), f"{line.found.gain:.2f} x", line.found.unit)
        )
    return Table(("technique", "with", "without", "gain", "unit"), tuple(rows), title)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def sentences(line: Line) -> str:
    """What is said of a technique, who says it, what it is here and why."""
    width = min(columns() or WIDTH, WIDTH)
    row, found = line.row, line.found
    if found is None:
        said = f"Not measured: {line.not_measured}."
    else:
        sides = ", ".join(f"{name} {_figure(value)}" for name, value in found.bars)
        said = f"Here {found.gain:.2f} x ({sides}; {found.unit}): {found.why}."
    text = f"{row.name}: {row.claim} ({row.source}). {said}"
    return textwrap.fill(text, width, subsequent_indent="  ")


def charts_of(line: Line) -> list[Bars]:
    """A chart of a row that was measured."""
    from octavo.bench.report.chart import Bars

    if line.found is None:
        return []
    better = "more" if line.found.more_is_better else "less"
    title = f"{line.row.name}: {line.found.gain:.2f} x"
    return [Bars(title, f"{line.found.unit} ({better} is better)", line.found.bars)]


def body_of(lines: Sequence[Line]) -> dict[str, Any]:
    """All rows; and the figures of those measured, by group, with their ratios together."""
    rows: list[dict[str, Any]] = []
    groups: dict[str, dict[str, Any]] = {}
    ratios: dict[str, Any] = {}
    for line in lines:
        row = {"name": line.row.name, "claim": line.row.claim, "source": line.row.source}
        found = line.found
        rows.append(
            row
            | {"not_measured": line.not_measured}
            | ({} if found is None else dataclasses.asdict(found) | {"gain": found.gain})
        )
        for name, figures in (found.figures if found is not None else {}).items():
            groups[name] = groups.get(name, {}) | dict(figures)
        ratios |= dict(found.ratios) if found is not None else {}
    return {"rows": rows, **groups, "ratios": ratios}


COMMAND = command
