"""One HTTP request's generation: a prompt through the engine and into the metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from octavo.engine.request import EngineRequest
from octavo.params import RequestOutput, SamplingParams
from octavo.server.engine import Observer, Queue, ServedEngine
from octavo.server.errors import ApiError


@dataclass(frozen=True, slots=True)
class Generation:
    """What to ask of the engine: one prompt; ManyPrompts is of several, each as a request of its own."""

    engine: ServedEngine
    metrics: Observer
    request_id: str
    requests: Sequence[EngineRequest]
    queue: Queue

    @property
    def params(self) -> SamplingParams:
        """All prompts' own."""
        return self.requests[0].params

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(index of the prompt, output), as they come. Closing the generator aborts what still runs."""
        return self.one(0)

    async def final(self) -> list[RequestOutput]:
        """The last output of every prompt (meant for FINAL_ONLY params)."""
        last: dict[int, RequestOutput] = {}
        async with aclosing(self.outputs()) as stream:
            async for index, output in stream:
                last[index] = output
        if len(last) < len(self.requests):
            raise ApiError(500, "the engine ended a request without output", "server_error")
        return [last[index] for index in range(len(self.requests))]

    async def one(self, index: int) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(index, output) of one of the prompts."""
        counts = _Counts(self.metrics)
        try:
            async with aclosing(await self.queue.begin(self.engine, self.requests[index])) as stream:
                async for output in stream:
                    _check(output)
                    counts.add(output)
                    yield index, output
        finally:
            counts.end()


def _check(output: RequestOutput) -> None:
    """Raise if the engine gave the request up: half an answer must not look like a whole one."""
    for completion in output.outputs:
        if completion.finish_reason == "abort":
            raise ApiError(503, "the request was aborted", "service_unavailable", code="aborted")


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
