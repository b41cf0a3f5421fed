"""RequestRecord: what one HTTP request did, for the access log and the tracer.

A record holds numbers and names alone, so that no prompt and no answer can get into a log from here.

If neither log nor tracer is asked for, nothing of this file runs. Otherwise Recorded wraps the app, which
does not know of it. The record lies in a context variable, which the tasks of a request inherit. Recorded
also wraps the server's metrics and queue: the wrappers note in the record what the request tells them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.server.limits import METHODS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from octavo.engine.request import EngineRequest
    from octavo.params import RequestMetrics, RequestOutput
    from octavo.server.engine import Observer, Queue, ServedEngine, ServedOutputs
    from octavo.server.state import ServerState

MAX_PATH = 200
"""Bytes of a path that are kept."""
CLIENT_LEFT = 499
"""The status of a request whose client left before its answer began, as proxies write it."""
ASKED = ("max_tokens", "temperature", "top_p", "top_k", "n", "frequency_penalty", "presence_penalty")
"""Numbers of SamplingParams that are kept."""


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request.

    Attributes:
        method: of a fixed set, else "other".
        path: as it was asked for, percent-encoded and without the query, which may hold a key.
        route: the endpoint's, such as /v1/models/{model}; "other": there is none; "": none is known.
        client: address and port; "-" on a unix socket.
        begun, ended: seconds of time.monotonic(); begun_ns: nanoseconds since 1970.
        status: of the response; CLIENT_LEFT where none was begun.
        whole: the response was sent to its end.
        request_id: the response's X-Request-Id; "" where it has none.
        answer_id: what the engine calls the first prompt's request; "" where there was none.
        model: the served one's name; "" where nothing was asked of the engine.
        asked: numbers that all its prompts have.
        prompts: so many came to an end. reasons: why, of those that did not break off.
        times: of each prompt that was begun.
    """

    method: str
    path: str
    http_version: str
    client: str
    begun: float = field(default_factory=time.monotonic)
    begun_ns: int = field(default_factory=time.time_ns)
    ended: float = 0.0
    status: int = CLIENT_LEFT
    whole: bool = False
    route: str = ""
    request_id: str = ""
    answer_id: str = ""
    model: str = ""
    asked: dict[str, int | float] = field(default_factory=dict)
    prompts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasons: list[str] = field(default_factory=list)
    times: list[RequestMetrics] = field(default_factory=list)

    @classmethod
    def of(cls, scope: Scope) -> RequestRecord:
        """The record of a request that has just arrived."""
        client = scope.get("client")
        raw = scope.get("raw_path") or scope["path"].encode("unicode_escape")
        return cls(
            scope["method"] if scope["method"] in METHODS or scope["method"] == "HEAD" else "other",
            raw[:MAX_PATH].decode("latin-1"),
            scope["http_version"],
            f"{client[0]}:{client[1]}" if client else "-",
        )

    @property
    def duration_s(self) -> float:
        return self.ended - self.begun

    def spans(self) -> dict[str, float]:
        """Seconds of each phase by its name; a phase whose beginning or end is unknown is left out.

        With several prompts a phase begins with the first of them and ends with the last.
        """
        arrival = min((each.arrival_time for each in self.times), default=None)
        scheduled = _first(each.first_scheduled_time for each in self.times)
        first = _first(each.first_token_time for each in self.times)
        last = max((each.last_token_time for each in self.times if each.last_token_time), default=None)
        pairs = {
            "queue": (arrival, scheduled),
            "time_to_first_token": (arrival, first),
            "prefill": (scheduled, first),
            "decode": (first, last),
        }
        return {
            name: end - begin for name, (begin, end) in pairs.items() if begin is not None and end is not None
        }

    def note_end(self, output: RequestOutput | None, num_tokens: list[int], reason: str | None) -> None:
        """One of its prompts has ended (Observer.observe_end)."""
        self.prompts += 1
        self.completion_tokens += sum(num_tokens)
        if reason is not None:
            self.reasons.append(reason)
        if output is not None:
            self.prompt_tokens += output.num_prompt_tokens
            self.cached_tokens += output.num_cached_tokens
            if output.metrics is not None:
                self.times.append(output.metrics)


def _first(moments: Iterable[float | None]) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


CURRENT: ContextVar[RequestRecord | None] = ContextVar("octavo_request", default=None)
"""The record of the request that a task works for."""

Reader = Callable[[RequestRecord, "Scope"], None]
"""Called with the record and the ASGI scope of each request that has ended. It must not wait."""


class Recorded:
    """An ASGI app that records the requests of another one, and wraps the metrics and the queue of its state.

    Args:
        readers: are given each record when its request has ended.
    """

    def __init__(self, app: ASGIApp, state: ServerState, readers: Sequence[Reader]) -> None:
        self._app, self._readers = app, readers
        state.metrics = RecordingMetrics(state.metrics)
        state.queue = RecordingQueue(state.queue)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord.of(scope)
        token = CURRENT.set(record)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                for name, value in message.get("headers", ()):
                    if name.lower() == b"x-request-id":
                        record.request_id = value.decode("latin-1")
            elif not message.get("more_body", False):
                record.whole = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            if record.status == CLIENT_LEFT:
                record.status = 500  # which the server says where an app has failed
            raise
        finally:
            CURRENT.reset(token)
            record.ended = time.monotonic()
            for reader in self._readers:
                reader(record, scope)


class RecordingMetrics:
    """Passes on to the metrics what a request tells them, and notes it in the request's record (Observer)."""

    def __init__(self, metrics: Observer) -> None:
        self._metrics = metrics

    def attach(self, engine: ServedEngine) -> None:
        self._metrics.attach(engine)

    def render(self) -> bytes:
        return self._metrics.render()

    def count_http(self, method: str, path: str, status: int) -> None:
        if (record := CURRENT.get()) is not None:
            record.route = path
        self._metrics.count_http(method, path, status)

    def observe_interval(self, seconds: float, tokens: int) -> None:
        self._metrics.observe_interval(seconds, tokens)

    def observe_end(self, output: RequestOutput | None, num_tokens: list[int], reason: str | None) -> None:
        if (record := CURRENT.get()) is not None:
            record.note_end(output, num_tokens, reason)
        self._metrics.observe_end(output, num_tokens, reason)


class RecordingQueue:
    """Passes a request on to the queue, and notes in its record what it asks of the engine (Queue)."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @property
    def retry_after_s(self) -> float:
        return self._queue.retry_after_s

    async def begin(self, engine: ServedEngine, request: EngineRequest) -> ServedOutputs:
        record = CURRENT.get()
        if record is not None and not record.model:
            record.model, record.answer_id = engine.served_model_name, request.request_id
            given = {} if request.params.pooling else {name: getattr(request.params, name) for name in ASKED}
            record.asked = {name: value for name, value in given.items() if value is not None}
        return await self._queue.begin(engine, request)
