"""octavo bench latency: how long one batch takes, from its prompts to its last token."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from octavo.cli._bench import INTERRUPTED, Output, driver_of, milliseconds
from octavo.cli._flags import NO_MATTER, EngineChoice, engine_flags, option_group
from octavo.cli._progress import count_progress, saying
from octavo.config.user import MAX_NUM_SEQS

if TYPE_CHECKING:
    from octavo.bench.offline import Latency

NAME = "latency"


@engine_flags(leave_out=(*NO_MATTER, "enable_prefix_caching"))
@option_group("output", Output)
def command(
    engine: EngineChoice,
    output: Output,
    batch_size: int = typer.Option(8, "--batch-size", help="Prompts at once.", min=1, max=MAX_NUM_SEQS),
    input_len: int = typer.Option(32, "--input-len", help="Tokens of a prompt.", min=1),
    output_len: int = typer.Option(128, "--output-len", help="Tokens of an answer.", min=1),
    warmups: int = typer.Option(10, "--num-iters-warmup", help="Runs that count for nothing.", min=0),
    iterations: int = typer.Option(30, "--num-iters", help="Runs that count.", min=1),
) -> int:
    """Measure how long a batch of prompts takes here, without a server."""
    from octavo.bench.offline import PERCENTILES, Batch, latency
    from octavo.bench.report.chart import Bars
    from octavo.bench.report.table import table

    output.check()
    batch = Batch(batch_size, input_len, output_len, warmups, iterations)
    driver = driver_of(engine, batch_size, output.as_json)
    what = f"{warmups + iterations} runs of {batch_size} prompts"
    with saying(what, output.as_json), count_progress("runs", output.as_json) as progress:
        found = latency(driver, batch, progress)
    title = (
        f"{engine.model}: {batch_size} prompts of {input_len} and {output_len} new tokens each, "
        f"{len(found.latencies)} runs"
    )
    bars = tuple((f"p{p}", 1e3 * found.percentiles[p]) for p in PERCENTILES if p in found.percentiles)
    charts = [Bars("A batch, from its prompts to its last token", "milliseconds", bars)]
    data = {"model": engine.model, **dataclasses.asdict(batch), **dataclasses.asdict(found)}
    output.show(title, [table(("", "figure"), rows_of(found), title)], charts, data)
    return INTERRUPTED if found.cut else 0


def rows_of(found: Latency) -> list[tuple[str, object]]:
    """Names with units, and figures."""
    rows: list[tuple[str, object]] = [("batch, mean (ms)", milliseconds(found.avg_latency))]
    rows += [(f"batch, p{p} (ms)", milliseconds(value)) for p, value in found.percentiles.items()]
    return [
        *rows,
        ("to the first token, median (TTFT, ms)", milliseconds(found.ttft)),
        ("a step while all decode, median (TPOT, ms)", milliseconds(found.tpot)),
        ("tokens of answers a second", found.output_rate),
        ("memory at the peak (MB)", found.memory / 1e6),
    ]


COMMAND = command
