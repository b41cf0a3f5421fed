"""Serving until a signal: answer 503 while the model loads, serve, drain, leave."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn
from fastapi import FastAPI
from uvicorn.config import LOGGING_CONFIG

from octavo.errors import EngineDeadError
from octavo.server.app import attach
from octavo.server.connections import ConnectionLimits, Connections, HttpServer
from octavo.server.edge import Edge, EdgeRules
from octavo.server.engine import ServedEngine
from octavo.server.freed import FreedMemory
from octavo.server.log_limit import quieten
from octavo.server.log_lines import ACCESS, ServerLogs
from octavo.server.notify import Notifier, keep_alive
from octavo.server.signals import StopSignals
from octavo.server.state import ServerState
from octavo.server.system.status import ALIVE, status

if TYPE_CHECKING:
    from octavo.server.request_record import Reader, Recorded

LOOK_S = 0.5
"""How often to see whether the engine is still alive."""
CLOSE_S = 5
"""After draining, connections get so long to send what they hold."""


class Watcher(Protocol):
    """Whom the server tells what it does."""

    def ready(self, engine: ServedEngine) -> None:
        """Requests are served."""

    def leaving(self, delay_s: float) -> None:
        """A signal has come; the server still takes requests for so many seconds."""

    def draining(self, num_requests: int) -> None:
        """The server takes no more requests, and ends so many that are in flight."""


@dataclass(frozen=True, slots=True)
class Network:
    """What the server needs beside its app: limits of connections, TLS, and who is told of what happens.

    Attributes:
        tls: its certificate; None speaks HTTP in the clear.
        drain_delay_s: how long after a signal new requests are still taken, while /ready and /health say 503.
        notifier: tells a supervisor that the server is ready, alive, or stops.
        logs: how log lines are written; the caller enters and leaves them.
        readers: are given what each request did, when it has ended.
    """

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    edge: EdgeRules = field(default_factory=EdgeRules)
    tls: ssl.SSLContext | None = None
    drain_delay_s: float = 0.0
    notifier: Notifier = field(default_factory=Notifier)
    logs: ServerLogs = field(default_factory=ServerLogs)
    readers: tuple[Reader, ...] = ()


async def serve(
    app: FastAPI,
    listener: socket.socket,
    loading: Awaitable[ServedEngine],
    watcher: Watcher,
    signals: StopSignals,
    drain_timeout_s: float,
    network: Network | None = None,
) -> bool:
    """Serve app until a signal, then drain. A second signal ends what still runs.

    Args:
        loading: gives the engine; its error ends the server and is raised here.
        watcher: is told of it.
        signals: what ends the server.
        drain_timeout_s: how long running requests may go on after the signal.

    Returns:
        Whether every request came to its end.

    Raises:
        EngineDeadError: the engine died by itself. Its requests were told so, /health said 503.
    """
    network = network or Network()
    state: ServerState = app.state.octavo
    server = _http_server(app, listener, network)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(signals.stop.wait())
    load = asyncio.ensure_future(loading)
    beside = [*_beside(state, network.notifier), asyncio.create_task(app.state.edge.watch_loop())]
    finished = True
    try:
        await asyncio.wait({load, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if load.done():  # else a signal came while the model was loading
            engine = load.result()
            attach(app, engine)
            watcher.ready(engine)
            network.notifier.send("READY=1\nSTATUS=serving")
            engine.prepare()
            dying = asyncio.ensure_future(_death(engine))
            await asyncio.wait({stopping, serving, dying}, return_when=asyncio.FIRST_COMPLETED)
            network.notifier.send("STOPPING=1\nSTATUS=draining")
            if not dying.done():
                await _leave(state, watcher, network.drain_delay_s, signals.kill, dying)
            died = dying.done()
            dying.cancel()
            if not died and state.in_flight:  # say for whom the server is waiting
                watcher.draining(state.in_flight)
            finished = await _drain(state, engine, server.connections, drain_timeout_s, signals.kill)
            if died:
                raise EngineDeadError(dying.result())
    finally:
        stopping.cancel()
        load.cancel()
        for task in beside:
            task.cancel()
        server.should_exit = True
        await serving
    return finished


def _http_server(app: FastAPI, listener: socket.socket, network: Network) -> HttpServer:
    met = _at_the_network(app, network)
    config = uvicorn.Config(
        met,
        log_config=None if network.logs.as_json else LOGGING_CONFIG,
        log_level="warning",
        access_log=False,  # uvicorn's lines hold queries, and are written from the event loop
        interface="asgi3",
        http="h11",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=network.limits.keep_alive_s,
        timeout_graceful_shutdown=CLOSE_S,
    )
    config.load()
    quieten("uvicorn.error", ACCESS, "octavo.server")
    app.state.edge.lines_dropped = lambda: network.logs.dropped
    connections = Connections(network.limits, app.state.edge.close)
    if isinstance(met, Edge):  # what is recorded is seen by the app alone
        connections.at_once = met.at_once
    return HttpServer(config, listener, connections, network.tls)


def _at_the_network(app: FastAPI, network: Network) -> Edge | Recorded:
    """The app as the network meets it; recorded where somebody reads what requests did."""
    edge = Edge(app, network.edge)
    if not network.readers:
        return edge
    from octavo.server.request_record import Recorded

    return Recorded(edge, app.state.octavo, network.readers)


def _beside(state: ServerState, notifier: Notifier) -> list[asyncio.Task[None]]:
    """What goes on beside requests until the server ends."""
    beside = [asyncio.create_task(keep_alive(notifier, lambda: status(state) in ALIVE))]
    beside.append(asyncio.create_task(FreedMemory().follow(state)))
    if state.keys is not None:
        beside.append(asyncio.create_task(state.keys.follow()))
    return beside


async def _leave(
    state: ServerState, watcher: Watcher, delay_s: float, kill: asyncio.Event, dying: asyncio.Future[str]
) -> None:
    """Go on for a while as one who is not ready any more, so that nobody sends what would be refused."""
    state.leaving = True
    if delay_s > 0:
        watcher.leaving(delay_s)
        killed = asyncio.ensure_future(kill.wait())
        ends: set[asyncio.Future[Any]] = {killed, dying}
        await asyncio.wait(ends, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()


async def _death(engine: ServedEngine) -> str:
    """Wait for the engine to die by itself. Returns why."""
    while (reason := engine.failure) is None:
        await asyncio.sleep(LOOK_S)
    return reason


async def _drain(
    state: ServerState,
    engine: ServedEngine,
    connections: Connections,
    timeout_s: float,
    kill: asyncio.Event,
) -> bool:
    """Refuse what is new, let run what runs; then stop the engine, which ends the rest with an error.

    Requests are counted here and not in the engine: one may still be on its way there.
    """
    state.draining = True
    killed = asyncio.ensure_future(kill.wait())
    idle = asyncio.ensure_future(state.idle(timeout_s))
    await asyncio.wait({killed, idle}, return_when=asyncio.FIRST_COMPLETED)
    finished = idle.done() and idle.result()
    for task in (killed, idle):
        task.cancel()
    state.stopping = True
    await engine.drain(0.0)
    await state.idle(CLOSE_S)
    connections.abort_busy()  # those who do not read what they were sent
    await asyncio.to_thread(engine.shutdown)
    return finished
