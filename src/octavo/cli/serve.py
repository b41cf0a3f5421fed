"""octavo serve: the APIs over one model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._flags import (
    EngineChoice,
    ReasoningParser,
    ToolCallParser,
    engine_flags,
    option_group,
    parsers,
)
from octavo.cli._launched import ServerCommand
from octavo.cli._network import NetworkFlags
from octavo.cli._observe import ObserveFlags
from octavo.errors import InvalidRequestError
from octavo.runtime.heaps import share_heaps

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM
    from octavo.server.engine import ServedEngine

TURN_S = 0.001
"""Seconds that a thread computes before another has its turn. The event loop waits so long at each read and
write, for each thread that computes in Python: with Python's own 5 ms nobody was answered for 0.1 s."""

NEVER = (1 << 31) - 1
"""Passes over old objects that the collector waits for before it passes over all."""

COMMAND_CLASS = ServerCommand


@dataclass(frozen=True, slots=True)
class Serving:
    """The flags of `octavo serve` that bound its requests and its end."""

    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            help="Seconds that running requests have to end after Ctrl-C or SIGTERM.",
            min=0.0,
        ),
    ] = 30.0
    stall_timeout: Annotated[
        float,
        typer.Option(
            "--stall-timeout",
            help="Seconds after which a step without progress counts as hung: its requests get an error, and "
            "the server ends with status 75; 0: never.",
            min=0.0,
        ),
    ] = 300.0
    max_concurrent_requests: Annotated[
        int,
        typer.Option(
            "--max-concurrent-requests",
            help="Most HTTP requests at once; the next one is refused (429).",
            min=1,
        ),
    ] = 1024
    max_waiting_tokens: Annotated[
        int,
        typer.Option(
            "--max-waiting-prompt-tokens",
            help="Most tokens of the prompts that wait; the next request is refused (429).",
            min=1,
        ),
    ] = 1 << 22
    queue_timeout: Annotated[
        float,
        typer.Option(
            "--queue-timeout",
            help="Seconds that a request may wait for its first step before a 429; 0: no limit.",
            min=0.0,
        ),
    ] = 0.0
    max_input_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-input-tokens",
            "--max-input-length",
            help="Most tokens of a prompt.  [default: what the context holds]",
            min=1,
            show_default=False,
        ),
    ] = None
    tool_call_parser: ToolCallParser = None
    reasoning_parser: ReasoningParser = None
    strict_fields: Annotated[
        bool,
        typer.Option(
            "--strict-fields/--no-strict-fields",
            help="Refuse requests with unknown fields (400); with --no-strict-fields serve them, and name "
            "the fields in the header X-Octavo-Ignored.",
        ),
    ] = True
    closed_schemas: Annotated[
        bool,
        typer.Option(
            "--closed-schemas",
            help="Where the schema of a response_format does not say whether an object may have other "
            "members than it names, it may not.",
        ),
    ] = False
    max_body_bytes: Annotated[
        int, typer.Option("--max-body-bytes", help="Largest body of a request, in bytes.", min=1)
    ] = 4 << 20


@engine_flags()
@option_group("flags", NetworkFlags)
@option_group("observe", ObserveFlags)
@option_group("serving", Serving)
def serve(
    engine: EngineChoice,
    flags: NetworkFlags,
    observe: ObserveFlags,
    serving: Serving,
    as_json: bool = typer.Option(False, "--json", help="Print events as JSON lines."),
) -> int:
    """Serve a model over HTTP (the OpenAI API) until Ctrl-C, SIGTERM or SIGHUP."""
    begin = time.perf_counter()
    share_heaps()  # before any thread has one
    sys.setswitchinterval(TURN_S)
    say = _Events(as_json or observe.as_json)
    keys, observers = flags.keys(), observe.observers()
    if engine.options.get("max_model_len") is not None:
        _check_input(serving.max_input_tokens, engine.options["max_model_len"] - 1)
    settings = {**_settings(serving), "takes_priority": engine.options.get("scheduling_policy") == "priority"}
    from octavo.server.signals import END_S, StopSignals, stop_signals

    listener, address = flags.listen()
    say.event("listening", f"listening on {address}", url=address)
    if (warning := flags.warning(listener, keys)) is not None:
        say.event("warning", f"warning: {warning}", message=warning)

    watcher = _Watcher(say, begin, address, serving.drain_timeout)
    loading: Future[AsyncLLM] = Future()

    async def until_signal(signals: StopSignals) -> bool:
        signals.bind()
        _load_in_thread(engine, serving, say, loading)
        # Importing the server takes as long as loading a small model: the two overlap.
        from octavo.server.app import create_app
        from octavo.server.run import serve as run
        from octavo.server.state import ServerSettings

        app = create_app(None, ServerSettings(**settings), keys)
        gc.collect(1)
        gc.freeze()  # the one whole pass, see _Watcher.ready, would take longer over this than over the rest
        future = asyncio.wrap_future(loading)
        network = flags.network(listener, serving.max_concurrent_requests, observers)
        return await run(app, listener, future, watcher, signals, serving.drain_timeout, network)

    most_s = flags.drain_delay + serving.drain_timeout + END_S
    with (
        _young_alone(),
        _stalled_engines_end(loading),
        stop_signals(most_s) as caught,
        observers.at_work(),
    ):
        finished = asyncio.run(until_signal(caught))
    say.event("stopped", "stopped" if finished else "stopped; some requests were cut", finished=finished)
    from octavo.structured import is_compiling

    if not loading.done() or is_compiling():
        # A thread that loads or compiles cannot be told to stop, and must not meet the interpreter's end.
        os._exit(0)
    return 0


def _settings(serving: Serving) -> dict[str, Any]:
    """Of ServerSettings, what the flags say. (Importing that takes as long as loading a small model.)"""
    return {
        "max_body_bytes": serving.max_body_bytes,
        "max_buffered_bytes": max(256 << 20, serving.max_body_bytes),  # one body must fit
        "max_concurrent_requests": serving.max_concurrent_requests,
        "max_waiting_tokens": serving.max_waiting_tokens,
        "queue_timeout_s": serving.queue_timeout,
        "max_input_tokens": serving.max_input_tokens,
        "strict_fields": serving.strict_fields,
        "closed_schemas": serving.closed_schemas,
        **parsers(serving.tool_call_parser, serving.reasoning_parser),
    }


class _Events:
    """What happens, as lines for people or as JSON for programs."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def event(self, kind: str, text: str, **fields: Any) -> None:
        line = json.dumps({"event": kind, **fields}) if self._as_json else text
        try:
            print(line, flush=True)
        except BrokenPipeError:
            raise  # whoever read this has gone, and run() ends quietly
        except OSError as error:  # a full disk: what is served does not hang on what is told
            why = error.strerror or str(error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            with contextlib.suppress(OSError):
                told = f"octavo: warning: standard output: {why}: nothing more is told there"
                print(told, file=sys.stderr, flush=True)

    def phase(self, name: str, seconds: float) -> None:
        self.event("phase", f"  {name:<10} {seconds:6.2f} s", name=name, seconds=round(seconds, 3))


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Tells what the server does (server.run.Watcher)."""

    say: _Events
    begin: float
    address: str
    drain_timeout: float

    def ready(self, engine: ServedEngine) -> None:
        from octavo.server.freed import leave_out

        leave_out()
        name, seconds = engine.served_model_name, time.perf_counter() - self.begin
        text = f"ready: {name} at {self.address}/v1 in {seconds:.2f} s"
        self.say.event("ready", text, model=name, url=self.address, seconds=round(seconds, 3))

    def leaving(self, delay_s: float) -> None:
        text = f"not ready any more; taking requests for {delay_s:g} s still"
        self.say.event("leaving", text, seconds=delay_s)

    def draining(self, num_requests: int) -> None:
        most, several = self.drain_timeout, "" if num_requests == 1 else "s"
        text = f"finishing {num_requests} request{several} ({most:g} s at most); Ctrl-C again stops now"
        self.say.event("draining", text, requests=num_requests, seconds=most)


@contextlib.contextmanager
def _young_alone() -> Iterator[None]:
    """The collector passes over young objects alone until the server ends. A whole pass stops every thread;
    without any, what imports leave behind would take megabytes until the model is loaded."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def _stalled_engines_end(loading: Future[AsyncLLM]) -> Iterator[None]:
    """Where the engine was given up, end the process here and now: its thread cannot be told to stop."""
    try:
        yield
    finally:
        known = loading.done() and not loading.exception()
        if known and loading.result().stalled:
            from octavo.server.signals import STALLED

            why = loading.result().failure
            print(f"octavo: error: {why}; see --stall-timeout", file=sys.stderr, flush=True)
            os._exit(STALLED)


def _check_input(wanted: int | None, most: int) -> None:
    """
    Raises:
        InvalidRequestError: a prompt of so many tokens would leave no room for an answer.
    """
    if wanted is not None and wanted > most:
        said = f"--max-input-tokens {wanted}: the context takes prompts of {most} tokens at most"
        raise InvalidRequestError(said, "max_input_tokens")


def _load_in_thread(engine: EngineChoice, serving: Serving, say: _Events, future: Future[AsyncLLM]) -> None:
    """Pull and load the model beside the main thread, which goes on hearing signals and answers 503."""
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it under our feet

    def work() -> None:
        from octavo.cli._load import fetch, load

        try:
            fetch(engine.model)
            llm = load(engine, say.phase)
            _check_input(serving.max_input_tokens, llm.max_encoder_len or llm.max_model_len - 1)
            if serving.stall_timeout:
                llm.watch(serving.stall_timeout)
            for name, text in llm.facts.items():
                say.event("fact", f"  {name:<10} {text}", name=name, value=text)
            future.set_result(llm)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="load", daemon=True).start()
