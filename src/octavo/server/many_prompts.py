"""Several prompts in one HTTP request: each is a request to the engine, and their outputs come mixed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from octavo.engine.request import EngineRequest
from octavo.errors import OverloadedError, ShuttingDownError
from octavo.params import RequestOutput
from octavo.server.engine import Queue, ServedEngine, ServedOutputs
from octavo.server.generation import Generation
from octavo.server.overload import WaitedError

T = TypeVar("T")

MAX_SEQUENCES = 128
"""Of one request, so many are with the engine at once; a large batch must not fill the queue for all."""


@dataclass(frozen=True, slots=True)
class ManyPrompts(Generation):
    """The order within a prompt is kept. If one prompt fails, all of them end."""

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(index of the prompt, output), as they come. Closing the generator aborts what still runs."""
        if len(self.requests) == 1:
            return self.one(0)
        batch = replace(self, queue=Siblings(self.queue))
        streams = [batch.one(index) for index in range(len(self.requests))]
        # No more than may wait: a request's later prompts must not be refused for its own earlier ones. Where
        # keys share the queue, one alone fills half of it.
        room = self.engine.max_waiting // (2 if self.requests[0].owner else 1)
        return merge(streams, max(1, min(MAX_SEQUENCES, room) // self.params.n))


@dataclass(slots=True)
class Siblings:
    """The queue as one request's prompts see it: none of them is refused for room that its siblings take.

    A prompt for which there is no room waits while others of its request stand in the queue, and tries again
    when one has left it. It is refused where none stands there: then others have taken the room.

    Attributes:
        standing: of the request's prompts, those in the queue now. left: set when the next one has left it.
    """

    queue: Queue
    standing: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def retry_after_s(self) -> float:
        return self.queue.retry_after_s

    async def begin(self, engine: ServedEngine, request: EngineRequest) -> ServedOutputs:
        """As FairQueue.begin()."""
        while True:
            self.standing += 1
            try:
                stream = await self.queue.begin(engine, request)
            except (WaitedError, ShuttingDownError):
                raise
            except OverloadedError:
                if self.standing == 1:  # this prompt alone
                    raise
            else:
                self.left.set()
                self.left = asyncio.Event()
                return stream
            finally:
                self.standing -= 1
            await self.left.wait()


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
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic of native code is no Exception, and its reader waits
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
