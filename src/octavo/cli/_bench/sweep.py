"""octavo bench sweep: throughput and latency by batch and context, with the knee and where memory ends."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import typer

from octavo.cli._bench import INTERRUPTED, Output, batches, driver_of, numbers
from octavo.cli._flags import NO_MATTER, EngineChoice, engine_flags, option_group

if TYPE_CHECKING:
    from octavo.bench.grid import Curve, Grid
    from octavo.bench.report.chart import Lines
    from octavo.bench.report.table import Table

NAME = "sweep"


@engine_flags(leave_out=(*NO_MATTER, "enable_prefix_caching"))
@option_group("output", Output)
def command(
    engine: EngineChoice,
    output: Output,
    batch_sizes: str = typer.Option("1,2,4,8,16,32", "--batch-sizes", help="Sequences at once."),
    contexts: str = typer.Option("128,1024", "--contexts", help="Tokens before those that are decoded."),
    output_len: int = typer.Option(24, "--output-len", "-n", help="Tokens to decode.", min=2),
    num_runs: int = typer.Option(3, "--num-runs", help="Runs of each; medians are printed.", min=1),
) -> int:
    """Measure throughput and latency by batch and context, and say where more stops being worth it."""
    from octavo.bench.grid import sweep_grid

    output.check()
    sizes, lengths = batches(batch_sizes), numbers(contexts, "--contexts")
    driver = driver_of(engine, max(sizes), output.as_json)

    def begins(batch: int, context: int) -> None:
        if not output.as_json:
            print(f"batch {batch} after {context} tokens ...", file=sys.stderr, flush=True)

    found = sweep_grid(driver, sizes, lengths, output_len, num_runs, begins)
    title = f"{engine.model}: decoding by batch and context"
    charts = [throughput_latency(found), throughput_batch(found)]
    output.show(title, [tables(found, title)], charts, {"model": engine.model, **dataclasses.asdict(found)})
    return INTERRUPTED if found.cut else 0


def tables(found: Grid, title: str) -> Table:
    """All cells; what was not measured says why in its last column."""
    from octavo.bench.report.table import Table, number

    rows = []
    for curve in found.curves:
        for cell in curve.cells:
            figures = (number(cell.tpot, 2), number(cell.rate), number(cell.ttft), number(cell.spread, 2))
            note = cell.not_measured or ("knee" if cell.batch == curve.knee else "")
            rows.append((f"{cell.context}", f"{cell.batch}", *figures, note))
    notes = [said(curve) for curve in found.curves]
    headers = ("context", "batch", "TPOT ms", "tok/s", "TTFT ms", "spread", "")
    return Table(headers, tuple(rows), title, (*notes, f"memory at the peak: {found.memory / 1e6:,.0f} MB"))


def said(curve: Curve) -> str:
    """Where the curve bends, and where memory ends."""
    bends = "no knee in what was measured" if curve.knee is None else f"the knee is at batch {curve.knee}"
    return f"after {curve.context} tokens {bends}; KV memory ends at batch {curve.memory_ends}"


def throughput_latency(found: Grid) -> Lines:
    """Each batch a point; the knees are marked."""
    from octavo.bench.report.chart import Lines, Mark, Series

    series, marks = [], []
    for curve in found.curves:
        done = [(cell.batch, cell.tpot, cell.rate) for cell in curve.cells if cell.tpot and cell.rate]
        series.append(Series(f"after {curve.context} tokens", tuple((tpot, rate) for _, tpot, rate in done)))
        name = f"knee: batch {curve.knee}, {curve.context} tokens"
        marks += [Mark(name, tpot) for batch, tpot, _ in done if batch == curve.knee]
    title = "Throughput over latency; each batch is a point"
    return Lines(title, "ms a token of one request", "tokens a second", tuple(series), tuple(marks))


def throughput_batch(found: Grid) -> Lines:
    """Throughput over the batch, and the batches at which memory ends."""
    from octavo.bench.report.chart import Lines, Mark, Series

    series = tuple(
        Series(
            f"after {curve.context} tokens",
            tuple((float(cell.batch), cell.rate) for cell in curve.cells if cell.rate),
        )
        for curve in found.curves
    )
    marks = tuple(
        Mark(f"KV memory ends, {curve.context} tokens", float(curve.memory_ends))
        for curve in found.curves
        if curve.memory_ends
    )
    return Lines("Throughput by batch", "sequences at once", "tokens a second", series, marks, log="x")


COMMAND = command
