"""Sends calls when they are due, and keeps what was measured, however the load ends.

open load      each is sent when it is due, whoever else is still being answered
closed load    at most so many are on the way; each answer lets the next one go

All times are of the event loop's clock, so a loop whose time is not the world's measures all the same.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from octavo.bench.serving.client import Client
from octavo.bench.serving.exchange import LoadRequest, Reply


@dataclass(frozen=True, slots=True)
class Pace:
    """When calls are sent.

    Attributes:
        due_s: of each call, in seconds from the beginning.
        max_concurrency: most on the way at once; None: no limit.
        timeout_s: for the whole load; what is not answered by then is given up.
    """

    due_s: Sequence[float]
    max_concurrency: int | None = None
    timeout_s: float = float("inf")


@dataclass(slots=True)
class LoadRecord:
    """What a load saw.

    Attributes:
        replies: in the order of the calls; those that were never sent have no sent_s.
        seconds: from the beginning to the last answer's end, or until the load was stopped.
        cut: why it ended before all were answered; None: they were.
        most_at_once: requests on the way.
        cpu_s: seconds of the processor that asking and reading took.
    """

    replies: list[Reply]
    seconds: float = 0.0
    cut: str | None = None
    most_at_once: int = 0
    cpu_s: float = 0.0
    _under_way: int = field(default=0, repr=False)

    def begins(self) -> None:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)

    def ends(self) -> None:
        self._under_way -= 1


async def generate(
    client: Client,
    calls: Sequence[LoadRequest],
    pace: Pace,
    stop: asyncio.Event | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> LoadRecord:
    """Send every call once.

    Args:
        stop: once it is set nothing more is sent, and what is on the way is given up.
        progress: called with (answers that ended, all).

    Raises:
        InvalidRequestError: the API cannot ask one of the calls; nothing was sent.
    """
    bodies = [client.body(call) for call in calls]
    loop = asyncio.get_running_loop()
    recorded = LoadRecord([Reply(due) for due in pace.due_s])
    slots = None if pace.max_concurrency is None else asyncio.Semaphore(pace.max_concurrency)
    begin, done, before = loop.time(), 0, _cpu_seconds()

    async def one(body: bytes, reply: Reply) -> None:
        nonlocal done
        wait = begin + reply.due_s - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        async with AsyncExitStack() as stack:
            if slots is not None:
                await stack.enter_async_context(slots)
            recorded.begins()
            stack.callback(recorded.ends)
            await client.send(body, reply, begin)
        done += 1
        progress(done, len(calls))

    tasks = [asyncio.ensure_future(one(*each)) for each in zip(bodies, recorded.replies, strict=True)]
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    everything = asyncio.ensure_future(asyncio.wait(tasks))
    limit = None if pace.timeout_s == float("inf") else pace.timeout_s
    try:
        await asyncio.wait((everything, stopping), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not everything.done():
            recorded.cut = "interrupted" if stopping.done() else "out of time"
        for task in (*tasks, everything, stopping):
            task.cancel()
        await asyncio.gather(*tasks, everything, stopping, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    ends = [reply.end_s for reply in recorded.replies if reply.end_s is not None]
    recorded.cpu_s = _cpu_seconds() - before
    recorded.seconds = loop.time() - begin if recorded.cut or not ends else max(ends)
    return recorded


def _cpu_seconds() -> float:
    """Of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
