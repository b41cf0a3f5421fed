"""Serving until a signal: answer 503 while the model loads, serve, drain, leave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Generator
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from octavo.errors import EngineDeadError
from octavo.server.app import attach
from octavo.server.engine import ServedEngine
from octavo.server.signals import StopSignals
from octavo.server.state import ServerState

LOOK_S = 0.5
"""How often to see whether the engine is still alive."""
CLOSE_S = 5
"""After draining, connections get so long to send what they hold."""


class Watcher(Protocol):
    """Hears what the server does."""

    def ready(self, engine: ServedEngine) -> None:
        """Requests are served."""

    def draining(self, num_requests: int) -> None:
        """A signal has come while so many requests were in flight."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the first signal must drain before connections close."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(
    app: FastAPI,
    listener: socket.socket,
    loading: Awaitable[ServedEngine],
    watcher: Watcher,
    signals: StopSignals,
    drain_timeout_s: float,
    access_log: bool = False,
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
    config = uvicorn.Config(
        app,
        log_level="info" if access_log else "warning",
        access_log=access_log,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=CLOSE_S,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(signals.stop.wait())
    load = asyncio.ensure_future(loading)
    finished = True
    try:
        await asyncio.wait({load, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if load.done():  # else a signal came while the model was loading
            engine = load.result()
            attach(app, engine)
            watcher.ready(engine)
            engine.prepare()
            dying = asyncio.ensure_future(_death(engine))
            await asyncio.wait({stopping, serving, dying}, return_when=asyncio.FIRST_COMPLETED)
            died = dying.done()
            dying.cancel()
            if not died and app.state.octavo.in_flight:  # say for whom the server is waiting
                watcher.draining(app.state.octavo.in_flight)
            finished = await _drain(app.state.octavo, engine, drain_timeout_s, signals.kill)
            if died:
                raise EngineDeadError(dying.result())
    finally:
        stopping.cancel()
        load.cancel()
        server.should_exit = True
        await serving
    return finished


async def _death(engine: ServedEngine) -> str:
    """Wait for the engine to die by itself. Returns why."""
    while (reason := engine.failure) is None:
        await asyncio.sleep(LOOK_S)
    return reason


async def _drain(state: ServerState, engine: ServedEngine, timeout_s: float, kill: asyncio.Event) -> bool:
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
    await engine.drain(0.0)
    await state.idle(CLOSE_S)
    await asyncio.to_thread(engine.shutdown)
    return finished
