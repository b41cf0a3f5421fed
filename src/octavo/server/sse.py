"""A stream of server-sent events; and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.errors import Dialect

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not gather events
]


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run work; cancel it, and wait until it has cleaned up, when the client leaves first.

    Returns:
        Whether work came to its end.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished = task.done()
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
    if finished:
        task.result()
    return finished


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events, already formatted (`data: ...\\n\\n`), and the dialect's last one.

    The status line waits for the first event, so an error before it is a plain HTTP error; a later
    one is sent as an event, and ends the stream.

    Args:
        dialect, names: how to say what events raise (see Dialect).
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        dialect: Dialect,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._events = events
        self._dialect, self._names = dialect, names
        self._start = STREAM_HEADERS + [(k.encode(), v.encode()) for k, v in headers.items()]
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_until_disconnect(receive, self._stream(scope, receive, send))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        end = self._dialect.end
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": self._start})
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            if not started:
                await self._dialect.response(error, self._names)(scope, receive, send)
                return
            end = self._dialect.last_event(error, self._names)
        await send({"type": "http.response.body", "body": end, "more_body": False})
