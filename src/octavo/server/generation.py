"""One HTTP request's generations: a prompt or several, through the engine and into the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from octavo.engine.request import EngineRequest
from octavo.params import RequestOutput, SamplingParams
from octavo.server.engine import Observer, ServedEngine
from octavo.server.errors import ApiError

T = TypeVar("T")

MAX_SEQUENCES = 128
"""Of one request, so many are with the engine at once; a large batch must not fill the queue for all."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What to ask of the engine: the HTTP request's prompts, each as a request of its own."""

    engine: ServedEngine
    metrics: Observer
    request_id: str
    requests: Sequence[EngineRequest]

    @property
    def params(self) -> SamplingParams:
        """All prompts' own."""
        return self.requests[0].params

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(index of the prompt, output), as they come; the order within a prompt is kept.

        Closing the generator aborts whatever still runs. If one prompt fails, all of them end.
        """
        streams = [self._one(index) for index in range(len(self.requests))]
        if len(streams) == 1:
            return streams[0]
        # No more than may wait: a request's later prompts must not be refused for its own earlier ones.
        return merge(streams, max(1, min(MAX_SEQUENCES, self.engine.max_waiting) // self.params.n))

    async def final(self) -> list[RequestOutput]:
        """The last output of every prompt (meant for FINAL_ONLY params)."""
        last: dict[int, RequestOutput] = {}
        async with aclosing(self.outputs()) as stream:
            async for index, output in stream:
                last[index] = output
        if len(last) < len(self.requests):
            raise ApiError(500, "the engine ended a request without output", "server_error")
        return [last[index] for index in range(len(self.requests))]

    async def _one(self, index: int) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        counts = _Counts(self.metrics)
        try:
            async with aclosing(await self.engine.outputs(self.requests[index])) as stream:
                async for output in stream:
                    _check(output)
                    counts.add(output)
                    yield index, output
        finally:
            counts.end()


def _check(output: RequestOutput) -> None:
    """Raise if the engine gave the request up: half an answer must not look like a whole one."""
    for completion in output.outputs:
        if completion.finish_reason in ("abort", "error"):
            reason = completion.stop_reason
            detail = f": {reason}" if isinstance(reason, str) and reason else ""
            if completion.finish_reason == "abort":
                raise ApiError(503, f"the request was aborted{detail}", "service_unavailable", code="aborted")
            raise ApiError(500, f"the request failed{detail}", "server_error", code="generation_failed")


@dataclass(slots=True)
class _Counts:
    """What the metrics want to know of one prompt's outputs."""

    metrics: Observer
    last: RequestOutput | None = None
    tokens: dict[int, int] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, output: RequestOutput) -> None:
        self.last = output
        now = time.monotonic()
        for completion in output.outputs:
            index, new = completion.index, len(completion.token_ids)
            if completion.finish_reason is not None:
                self.reasons.setdefault(index, completion.finish_reason)
            if new == 0:
                continue
            if index in self.times:  # not the first token, whose time is counted as TTFT
                self.metrics.observe_interval(now - self.times[index], new)
            self.times[index] = now
            self.tokens[index] = self.tokens.get(index, 0) + new

    def end(self) -> None:
        done = self.last is not None and self.last.finished
        # A request of n completions counts once: cut short if any of them was.
        reason = ("length" if "length" in self.reasons.values() else "stop") if done else None
        self.metrics.observe_end(self.last, list(self.tokens.values()), reason)


async def merge(streams: Sequence[AsyncGenerator[T, None]], at_once: int) -> AsyncGenerator[T, None]:
    """Items of all streams, as they come; the first error ends them all.

    Args:
        at_once: so many streams run; the next one starts when one has ended.
    """
    # Bounded: a reader that is slow makes the engine gather its updates instead of us.
    queue: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue(len(streams))
    places = asyncio.Semaphore(at_once)

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        try:
            async with places, aclosing(stream):
                async for item in stream:
                    await queue.put((item,))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.ensure_future(pump(stream)) for stream in streams]
    try:
        open_streams = len(streams)
        while open_streams:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                open_streams -= 1
            else:
                yield item[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
