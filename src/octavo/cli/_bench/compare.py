"""octavo bench compare: several servers on the same work, in turns."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._bench import INTERRUPTED, Output, dataset_options, until_interrupted
from octavo.cli._bench.serve import Asks, Server, Traffic, calls_for, measure, shared_of, times_for
from octavo.cli._flags import declared_flags, option_group
from octavo.errors import InvalidRequestError, OctavoError

if TYPE_CHECKING:
    from octavo.bench.report.chart import Bars
    from octavo.bench.report.table import Table
    from octavo.bench.serving.compare import Compared, Load
    from octavo.bench.serving.figures import Figures
    from octavo.bench.serving.peers import Peer

NAME = "compare"
SERVERS = typer.Argument(
    ...,
    help="URL of each server, or KIND:MODEL to start one (octavo, llama.cpp, llama-cpp-python, transformers, "
    "vllm), perhaps after NAME=; the first is what others are set beside.",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Starting:
    """How servers are started, as the options declare it."""

    program: Annotated[
        list[str] | None, typer.Option("--program", help="KIND=PATH of a program; several times.")
    ] = None
    peer_flags: Annotated[
        list[str] | None,
        typer.Option("--peer-flags", help="NAME=FLAGS: more flags of its own; several times."),
    ] = None
    ready_timeout: Annotated[
        float, typer.Option("--ready-timeout", help="Seconds that a start may take.", min=0.001)
    ] = 300.0


@option_group("server", Server)
@option_group("traffic", Traffic)
@declared_flags("lengths", dataset_options)
@option_group("starting", Starting)
@option_group("output", Output)
def command(
    server: Server,
    traffic: Traffic,
    lengths: Mapping[str, Any],
    starting: Starting,
    output: Output,
    servers: list[str] = SERVERS,
    rounds: int = typer.Option(5, "--rounds", help="Loads on each server; medians are printed.", min=1),
) -> int:
    """Compare servers, ours and others', running or started here, on the same requests, in turns."""
    from octavo.bench.serving.compare import compare, reference_seconds, settle

    output.check()
    if server.base_url:
        raise InvalidRequestError("compare takes NAME=URL of each server, and no --base-url")
    named = named_servers(servers)
    kinds = started_kinds(named, starting)
    sides = {name: asks_of(server, url) for name, url in named.items() if name not in kinds}
    times_for(calls_for(Asks(server, "").api, traffic, lengths)[0], traffic)  # wrong ones are refused now

    def say(name: str, number: int) -> None:
        if not output.as_json:
            print(f"round {number + 1} of {rounds}: {name} ...", file=sys.stderr, flush=True)

    async def work(stop: asyncio.Event) -> Compared:
        async with AsyncExitStack() as running:
            loads, begun = {}, False
            asked: list[str] = []
            for name in named:
                asks: Asks | OctavoError = sides[name] if name in sides else OctavoError("interrupted")
                if name in kinds and not stop.is_set():
                    if not output.as_json:
                        print(f"starting {name} ...", file=sys.stderr, flush=True)
                    asks = await started(kinds[name], starting, running, server)
                if isinstance(asks, OctavoError):
                    loads[name] = missing(asks)
                else:
                    asked.append(asks.url.rstrip("/").removesuffix("/v1"))
                    again = asked.count(asked[-1]) - 1
                    loads[name] = load_of(asks, traffic, lengths, stop, again)
                    begun = begun or name in kinds
            if begun and not stop.is_set():
                await settle(reference_seconds)
            return await compare(loads, rounds, reference_seconds, stop, say)

    found = until_interrupted(work)
    title = f"{traffic.num_prompts} requests on each server, {rounds} rounds in turns"
    table = table_of(found, title, shared_of(traffic, lengths))
    output.show(title, [table], charts_of(found), body_of(found, named))
    if found.cut:
        return INTERRUPTED
    return 0 if any(side.rounds for side in found.sides) else 1


def named_servers(texts: list[str]) -> dict[str, str]:
    """NAME=URL as {name: url}; a URL alone names itself, KIND:MODEL is named by its kind.

    Raises:
        InvalidRequestError: two have one name.
    """
    from octavo.bench.serving.peers import find

    found: dict[str, str] = {}
    for text in texts:
        name, given, url = text.partition("=")
        if not given or "/" in name:  # (a URL's own query)
            name, url = text, text
            kind, colon, model = text.partition(":")
            if colon and kind in find() and not model.startswith("//"):
                name = kind
        if name in found:
            raise InvalidRequestError(f"two servers are named {name!r}")
        found[name] = url
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """A server to be started. flags: more of its own."""

    name: str
    kind: Peer
    model: str
    program: str | None
    flags: Sequence[str]


def started_kinds(named: Mapping[str, str], starting: Starting) -> dict[str, Started]:
    """Those of the servers that are to be started, by their names.

    Raises:
        InvalidRequestError: a flag speaks of a kind or a server that is not there, or a kind lacks a model.
    """
    from octavo.bench.serving.peers import find, kind_of

    programs = pairs_of(starting.program, "--program takes KIND=PATH")
    flags = pairs_of(starting.peer_flags, "--peer-flags takes NAME=FLAGS")
    for kind in programs:
        kind_of(kind)
    found = {}
    for name, target in named.items():
        kind, _, model = target.partition(":")
        if kind in find() and not model.startswith("//"):
            if not model:
                raise InvalidRequestError(f"{target!r} names no model: {kind}:MODEL starts a server with one")
            words = shlex.split(flags.get(name, ""))
            found[name] = Started(name, kind_of(kind), model, programs.get(kind), words)
    if unknown := sorted(set(flags) - set(found)):
        raise InvalidRequestError(f"--peer-flags speaks of {unknown[0]!r}, which is not started")
    return found


def asks_of(server: Server, url: str) -> Asks:
    """A server that runs.

    Raises:
        InvalidRequestError: it is no address, and no kind of server either; the message has the kinds.
    """
    from octavo.bench.serving.peers import find
    from octavo.bench.wire import Wire

    try:
        Wire(url)
    except InvalidRequestError as error:
        kinds = ", ".join(find())
        raise InvalidRequestError(f"{error}, nor KIND:MODEL of one to start; kinds: {kinds}") from None
    return Asks(server, url)


def pairs_of(texts: Sequence[str] | None, what: str) -> dict[str, str]:
    """NAME=VALUE each.

    Raises:
        InvalidRequestError: one is no such pair; the message begins with `what`.
    """
    found = {}
    for text in texts or ():
        name, given, value = text.partition("=")
        if not (name and given and value):
            raise InvalidRequestError(f"{what}, and not {text!r}")
        found[name] = value
    return found


async def started(
    wanted: Started, starting: Starting, running: AsyncExitStack, server: Server
) -> Asks | OctavoError:
    """The server, once it is ready; or why it is not."""
    from octavo.bench.serving.peers import command_of, free_port, start

    port = free_port()
    try:  # (a model may have to be pulled)
        words = await asyncio.to_thread(
            command_of, wanted.kind, wanted.model, port, wanted.program, wanted.flags
        )
        found = await start(words, port)
        running.push_async_callback(found.close)
        await found.ready(starting.ready_timeout)
    except OctavoError as error:
        return error
    return Asks(server, found.url)


def missing(why: OctavoError) -> Load:
    """The load of a server that is not there."""
    from octavo.bench.serving.exchange import Reply
    from octavo.bench.serving.figures import figures
    from octavo.bench.serving.generator import LoadRecord

    async def load(_number: int) -> Figures:
        return figures(LoadRecord([Reply(0.0, error=str(why))]))

    return load


def load_of(
    asks: Asks, traffic: Traffic, lengths: Mapping[str, Any], stop: asyncio.Event, again: int = 0
) -> Load:
    """One round on one server; a server that does not answer fails in the round's figures.

    Prompts are the round's own: what an earlier one has asked may lie in the server's cache.

    Args:
        again: how often the same server stands before, under other names.
    """
    from octavo.bench.serving.compare import round_seed
    from octavo.bench.serving.exchange import Reply
    from octavo.bench.serving.figures import figures
    from octavo.bench.serving.generator import LoadRecord, Pace

    async def load(number: int) -> Figures:
        here = dataclasses.replace(traffic, seed=round_seed(traffic.seed, number, again))
        calls, warm = calls_for(asks.api, here, lengths)
        pace = Pace(times_for(calls, traffic), traffic.max_concurrency, traffic.timeout)
        try:
            recorded = await measure(asks, calls, warm, pace, (stop, lambda _done, _all: None))
        except InvalidRequestError:
            raise
        except OctavoError as error:
            recorded = LoadRecord([Reply(0.0, error=str(error))])
        return figures(recorded, held_back=traffic.max_concurrency is not None)

    return load


def table_of(found: Compared, title: str, shared: float = 0.0) -> Table:
    """A row for each server: medians, in brackets how far rounds lie apart, and the ratio to the first.

    Args:
        shared: which part of the prompts' tokens is to come from a cache (DataSet.shared).
    """
    from octavo.bench.report.table import NONE, Table, number
    from octavo.bench.serving.compare import COMPARED
    from octavo.bench.serving.shown import cache_note, shown_share

    rows = []
    notes = []
    for side in found.sides:
        cells = []
        for figure in COMPARED:
            median = side.median(figure)
            cells.append(NONE if median is None else f"{number(median.value)} ({median.spread:.2f})")
        ratio = found.ratio(side, "output_throughput")
        cells += [shown_share(side.cached_share), NONE if ratio is None else f"{ratio:.2f}"]
        rows.append((side.name, *cells))
        notes += cache_note(side.cached_share, shared, f"{side.name}'s")
        if side.not_measured is not None:
            notes.append(f"{side.name} was not measured: {side.not_measured}")
        elif side is not found.sides[0] and found.differ(side, "output_throughput") is False:
            notes.append(f"{side.name} and {found.sides[0].name} differ by no more than the rounds of one do")
    headers = ("", *(name for name, _ in COMPARED.values()), "from cache", "ratio")
    notes.append(noise_note(found.noise))
    if found.cut:
        notes.append(f"{found.cut}: there are fewer rounds than asked for")
    return Table(headers, tuple(rows), f"{title}; in brackets highest over lowest", tuple(notes))


def noise_note(noise: float | None) -> str:
    """What the probes say of the machine, servers and their caches apart."""
    from octavo.bench.serving.compare import NOISY

    if noise is None:
        return "nothing was measured"
    verdict = "noisy: measure again" if noise > NOISY else "quiet"
    return (
        f"a reference product, timed here before each load, took up to {noise:.2f} times as long: {verdict}"
    )


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
                "cached_share": side.cached_share,
                "medians": {k: None if v is None else dataclasses.asdict(v) for k, v in medians.items()},
                "ratios": {figure: found.ratio(side, figure) for figure in COMPARED},
                "rounds": [each.summary() for each in side.rounds],
            }
        )
    return {"servers": sides, "probes": found.probes, "noise": found.noise, "cut": found.cut}


COMMAND = command
