"""What the endpoints of one app share: settings, the engine once it is loaded, and whether we drain."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request
from starlette.types import Scope

from octavo.server.engine import Keys, Observer, Queue, ServedEngine
from octavo.server.errors import ApiError, model_not_found


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The numbers of the HTTP side.

    Attributes:
        api_keys: accepted keys, for programs; create_app also takes keys.ApiKeys. Empty accepts anybody.
        max_body_bytes: larger request bodies are refused (413).
        max_buffered_bytes: of all bodies whose answers have not begun; what exceeds it is refused (429).
        max_concurrent_requests: POST requests in flight above this many are refused (429).
        tool_call_parser, reasoning_parser: how the model writes calls, reasoning; None: its template tells.
        takes_priority: clients may ask to be served before others.
        max_waiting_tokens: of prompts that wait; requests are refused that bring more (429).
        queue_timeout_s: a request that has not begun after so many seconds is refused (429); 0: none is.
        body_timeout_s: a body that takes longer to arrive is given up (408).
        max_prompts: prompts that one request may batch.
        max_input_tokens: of a prompt, where that is less than the context holds.
        strict_fields: fields that nobody knows are refused (400), not ignored.
        closed_schemas: objects in a response_format's schema have the members that it names, and no others.
    """

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    max_buffered_bytes: int = 256 << 20
    max_concurrent_requests: int = 1024
    max_prompts: int = 256
    max_input_tokens: int | None = None
    takes_priority: bool = False
    max_waiting_tokens: int = 1 << 22
    queue_timeout_s: float = 0.0
    body_timeout_s: float = 60.0
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    strict_fields: bool = True
    closed_schemas: bool = False


@dataclass(slots=True)
class ServerState:
    """Owned by the event loop's thread; engine is None until the model is loaded.

    Attributes:
        keys: None accepts anybody.
        leaving: a signal has come; draining: new requests are refused; stopping: the engine is told to end.
        buffered: bytes of bodies that are held now (see max_buffered_bytes).
        rejections: requests refused before an endpoint, by reason.
        served_names: what serves each name that a request may give as its model; the first one's is reported.
        kept: what an API keeps from one request to the next, by a name of its own.
    """

    settings: ServerSettings
    metrics: Observer
    queue: Queue
    engine: ServedEngine | None = None
    served_names: Mapping[str, ServedEngine] = field(default_factory=dict)
    keys: Keys | None = None
    leaving: bool = False
    draining: bool = False
    stopping: bool = False
    in_flight: int = 0
    buffered: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    started: int = field(default_factory=lambda: int(time.time()))
    kept: dict[str, Any] = field(default_factory=dict)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def attach(self, engine: ServedEngine) -> None:
        """Serve this engine under all of its names from now on."""
        self.metrics.attach(engine)
        self.served_names = dict.fromkeys(engine.served_model_names, engine)
        self.engine = engine

    def admit(self) -> None:
        """A request may begin.

        Raises:
            ApiError: 503 while starting or draining, 429 when too many are in flight.
        """
        if self.draining:
            raise ApiError(503, "the server is shutting down", "service_unavailable", headers=RETRY)
        self.served()
        if self.in_flight >= (limit := self.settings.max_concurrent_requests):
            message = f"{limit} requests are in flight already; try again later"
            retry = {"retry-after": f"{self.queue.retry_after_s:.0f}"}
            raise ApiError(429, message, "overloaded_error", code="overloaded", headers=retry)

    def leave(self) -> None:
        """A request has ended, response and all."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when timeout_s passed first."""
        self._idle.clear()
        with suppress(TimeoutError):
            if self.in_flight:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self.in_flight == 0

    def served(self, model: str | None = None) -> ServedEngine:
        """The engine that serves this model name (one of ANY_MODEL: whatever is served).

        Raises:
            ApiError: 404 for another model's name, 503 while the model loads.
        """
        if self.engine is None:
            raise ApiError(503, "the model is still loading", "service_unavailable", headers=RETRY)
        if model is not None and model in self.served_names:
            return self.served_names[model]
        if model in ANY_MODEL:
            return self.engine
        raise model_not_found(model, self.served_names)

    @property
    def several_keys(self) -> bool:
        """Whether keys tell one client from another."""
        return self.keys is not None and len(self.keys) > 1

    def cache_salt(self, given: str | None, owner: str) -> str | None:
        """The prefix cache's namespace: what the caller names, else the caller itself where keys are set: or
        one tenant could time whether another has sent the same prompt."""
        return f"{owner}/{given or ''}" if given is not None or owner else None


RETRY = {"retry-after": "1"}
ANY_MODEL = (None, "tgi", "dummy")  # what clients give as the name where one model is served


def state_of(request: Request) -> ServerState:
    """The state of the app that this request came to."""
    return cast(ServerState, request.app.state.octavo)


OWNER = "octavo.owner"
"""Where LimitsMiddleware notes in a request's scope who asks (Caller.owner)."""


def key_owner(scope: Scope) -> str:
    """Who asks: what one key has stored is not for another. Empty where no keys are set."""
    return str(scope.get(OWNER, ""))
