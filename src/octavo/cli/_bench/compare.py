"""octavo bench compare: several servers on the same work, in turns."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from octavo.cli._bench import INTERRUPTED, Output, dataset_options, until_interrupted
from octavo.cli._bench.serve import Asks, Server, Traffic, calls_for, measure, times_for
from octavo.cli._flags import declared_flags, option_group
from octavo.errors import InvalidRequestError, OctavoError

if TYPE_CHECKING:
    from octavo.bench.report.chart import Bars
    from octavo.bench.report.table import Table
    from octavo.bench.serving.compare import Compared, Load
    from octavo.bench.serving.figures import Figures

NAME = "compare"
SERVERS = typer.Argument(..., help="NAME=URL of each server; the first is what others are set beside.")


@option_group("server", Server)
@option_group("traffic", Traffic)
@declared_flags("lengths", dataset_options)
@option_group("output", Output)
def command(
    server: Server,
    traffic: Traffic,
    lengths: Mapping[str, Any],
    output: Output,
    servers: list[str] = SERVERS,
    rounds: int = typer.Option(5, "--rounds", help="Loads on each server; medians are printed.", min=1),
) -> int:
    """Compare servers, ours and others', on the same requests, in turns on one machine."""
    from octavo.bench.serving.compare import compare, reference_seconds

    output.check()
    if server.base_url:
        raise InvalidRequestError("compare takes NAME=URL of each server, and no --base-url")
    named = named_servers(servers)
    sides = {name: Asks(server, url) for name, url in named.items()}

    def say(name: str, number: int) -> None:
        if not output.as_json:
            print(f"round {number + 1} of {rounds}: {name} ...", file=sys.stderr, flush=True)

    async def work(stop: asyncio.Event) -> Compared:
        loads = {name: load_of(asks, traffic, lengths, stop) for name, asks in sides.items()}
        return await compare(loads, rounds, reference_seconds, stop, say)

    found = until_interrupted(work)
    title = f"{traffic.num_prompts} requests on each server, {rounds} rounds in turns"
    output.show(title, [table_of(found, title)], charts_of(found), body_of(found, named))
    if found.cut:
        return INTERRUPTED
    return 0 if any(side.rounds for side in found.sides) else 1


def named_servers(texts: list[str]) -> dict[str, str]:
    """NAME=URL as {name: url}; a URL alone names itself.

    Raises:
        InvalidRequestError: two have one name.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, given, url = text.partition("=")
        if not given or "/" in name:  # (a URL's own query)
            name, url = text, text
        if name in found:
            raise InvalidRequestError(f"two servers are named {name!r}")
        found[name] = url
    return found


def load_of(asks: Asks, traffic: Traffic, lengths: Mapping[str, Any], stop: asyncio.Event) -> Load:
    """One round on one server; a server that does not answer fails in the round's figures."""
    from octavo.bench.serving.exchange import Reply
    from octavo.bench.serving.figures import figures
    from octavo.bench.serving.generator import Pace, Recorded

    calls, warm = calls_for(asks, traffic, lengths)
    pace = Pace(times_for(calls, traffic), traffic.max_concurrency, traffic.timeout)

    async def load() -> Figures:
        try:
            recorded = await measure(asks, calls, warm, pace, (stop, lambda _done, _all: None))
        except InvalidRequestError:
            raise
        except OctavoError as error:
            recorded = Recorded([Reply(0.0, error=str(error))])
        return figures(recorded, held_back=traffic.max_concurrency is not None)

    return load


def table_of(found: Compared, title: str) -> Table:
    """A row for each server: medians, in brackets how far rounds lie apart, and the ratio to the first."""
    from octavo.bench.report.table import NONE, Table, number
    from octavo.bench.serving.compare import COMPARED, NOISY

    rows = []
    notes = []
    for side in found.sides:
        cells = []
        for figure in COMPARED:
            median = side.median(figure)
            cells.append(NONE if median is None else f"{number(median.value)} ({median.spread:.2f})")
        ratio = found.ratio(side, "output_throughput")
        cells.append(NONE if ratio is None else f"{ratio:.2f}")
        rows.append((side.name, *cells))
        if side.not_measured is not None:
            notes.append(f"{side.name} was not measured: {side.not_measured}")
        elif side is not found.sides[0] and found.differ(side, "output_throughput") is False:
            notes.append(f"{side.name} and {found.sides[0].name} differ by no more than the rounds of one do")
    headers = ("", *(name for name, _ in COMPARED.values()), "ratio")
    if found.noise is not None:
        verdict = "noisy: measure again" if found.noise > NOISY else "quiet"
        notes.append(f"the same reference product took up to {found.noise:.2f} times as long: {verdict}")
    if found.cut:
        notes.append(f"{found.cut}: there are fewer rounds than asked for")
    return Table(headers, tuple(rows), f"{title}; in brackets highest over lowest", tuple(notes))


def charts_of(found: Compared) -> list[Bars]:
    """Each figure of all servers that have it."""
    from octavo.bench.report.chart import Bars
    from octavo.bench.serving.compare import COMPARED

    charts = []
    for figure, (name, more) in COMPARED.items():
        medians = ((side.name, side.median(figure)) for side in found.sides)
        bars = tuple((side, median.value) for side, median in medians if median is not None)
        charts.append(Bars(name, f"{name} ({'more' if more else 'less'} is better)", bars))
    return charts


def body_of(found: Compared, named: Mapping[str, str]) -> dict[str, Any]:
    """For JSON: every round of every server, and their medians."""
    from octavo.bench.serving.compare import COMPARED

    sides = []
    for side in found.sides:
        medians = {figure: side.median(figure) for figure in COMPARED}
        sides.append(
            {
                "name": side.name,
                "url": named[side.name],
                "not_measured": side.not_measured,
                "medians": {k: None if v is None else dataclasses.asdict(v) for k, v in medians.items()},
                "ratios": {figure: found.ratio(side, figure) for figure in COMPARED},
                "rounds": [each.summary() for each in side.rounds],
            }
        )
    return {"servers": sides, "probes": found.probes, "noise": found.noise, "cut": found.cut}


COMMAND = command
