"""What the endpoints of one app share: settings, the engine once it is loaded, and whether we drain."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request

from octavo.server.engine import Observer, Queue, ServedEngine
from octavo.server.errors import ApiError, model_not_found


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The numbers of the HTTP side.

    Attributes:
        api_keys: accepted bearer tokens; empty accepts anybody.
        max_body_bytes: larger request bodies are refused (413).
        max_concurrent_requests: POST requests in flight above this many are refused (429).
        tool_call_parser, reasoning_parser: formats of the model's tool calls and of its reasoning; None: as
            its chat template tells.
        takes_priority: clients may ask to be served before others.
        max_waiting_tokens: of prompts that wait; requests are refused that bring more (429).
        queue_timeout_s: a request that has not begun after so many seconds is refused (429); 0: none is.
        body_timeout_s: a body that takes longer to arrive is given up (408).
        max_prompts: prompts that one request may batch.
    """

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    max_concurrent_requests: int = 1024
    max_prompts: int = 256
    takes_priority: bool = False
    max_waiting_tokens: int = 1 << 22
    queue_timeout_s: float = 0.0
    body_timeout_s: float = 60.0
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None


@dataclass(slots=True)
class ServerState:
    """Owned by the event loop's thread; engine is None until the model is loaded.

    Attributes:
        served_names: what serves each name that a request may give as its model; the first one's is reported.
        kept: what an API keeps from one request to the next, by a name of its own.
    """

    settings: ServerSettings
    metrics: Observer
    queue: Queue
    engine: ServedEngine | None = None
    served_names: Mapping[str, ServedEngine] = field(default_factory=dict)
    draining: bool = False
    in_flight: int = 0
    started: int = field(default_factory=lambda: int(time.time()))
    kept: dict[str, Any] = field(default_factory=dict)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def attach(self, engine: ServedEngine) -> None:
        """Serve this engine under all of its names from now on."""
        self.metrics.attach(engine)
        self.served_names = dict.fromkeys(engine.served_model_names, engine)
        self.engine = engine

    def enter(self) -> None:
        """A request begins.

        Raises:
            ApiError: 503 while starting or draining, 429 when too many are in flight.
        """
        if self.draining:
            raise ApiError(503, "the server is shutting down", "service_unavailable", headers=RETRY)
        if self.engine is None:
            raise ApiError(503, "the model is still loading", "service_unavailable", headers=RETRY)
        limit = self.settings.max_concurrent_requests
        if self.in_flight >= limit:
            message = f"{limit} requests are in flight already; try again later"
            raise ApiError(429, message, "overloaded_error", code="overloaded", headers=RETRY)
        self.in_flight += 1

    def leave(self) -> None:
        """A request has ended, response and all."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; False when timeout_s passed first."""
        self._idle.clear()
        if self.in_flight == 0:
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def served(self, model: str | None = None) -> ServedEngine:
        """The engine that serves this model name (None: whatever is served).

        Raises:
            ApiError: 404 for another model's name, 503 while the model loads.
        """
        if self.engine is None:
            raise ApiError(503, "the model is still loading", "service_unavailable", headers=RETRY)
        if model is None:
            return self.engine
        if model not in self.served_names:
            raise model_not_found(model, self.served_names)
        return self.served_names[model]

    def accepts(self, token: str | None) -> bool:
        """Whether a bearer token opens the door; compared in constant time."""
        keys = self.settings.api_keys
        if not keys:
            return True
        given = (token or "").encode()
        # All keys are compared, so that the time does not tell which one came close.
        matches = [hmac.compare_digest(given, key.encode()) for key in keys]
        return any(matches)

    def owner(self, token: str | None) -> str:
        """Who asks, as far as keys tell: what one has stored is not for another."""
        return hashlib.sha256((token or "").encode()).hexdigest() if self.settings.api_keys else ""

    def cache_salt(self, given: str | None, token: str | None) -> str | None:
        """The prefix cache's namespace: what the caller names, else the caller's key where keys are set.

        Without it one tenant could time whether another has sent the same prompt.
        """
        if given is None and not self.settings.api_keys:
            return None
        return f"{self.owner(token)}/{given or ''}"


RETRY = {"retry-after": "1"}


def state_of(request: Request) -> ServerState:
    """The state of the app that this request came to."""
    return cast(ServerState, request.app.state.octavo)


def bearer_token(headers: dict[bytes, bytes] | list[tuple[bytes, bytes]]) -> str | None:
    """The token of an Authorization header, or None."""
    for name, value in headers.items() if isinstance(headers, dict) else headers:
        if name.lower() == b"authorization":
            scheme, _, token = value.partition(b" ")
            return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else None
        if name.lower() == b"x-api-key":  # Anthropic's clients
            return value.strip().decode("latin-1")
    return None
