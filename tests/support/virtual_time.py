"""An event loop whose clock nobody waits for, and a server that answers by script in its time.

Where every task sleeps, the clock jumps to the next timer, so what is measured is exact and takes no time.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Waits by moving a clock on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everybody waits, and nobody will come")
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """time() is virtual and begins at 100."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return 100.0 + self._jump.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


Act = tuple[float, bytes | None]
"""Wait so long, then send this; None: close the connection."""


@dataclass
class Scripted:
    """Answers requests by script; its connect() stands in for a connection of the system.

    Attributes:
        script: (request's number, path, body) -> what to do, after the headers of a 200 in chunks.
        seen: (when it came, path, body) of each request.
    """

    script: Callable[[int, str, Any], Iterable[Act]]
    seen: list[tuple[float, str, Any]] = field(default_factory=list)
    running: int = 0
    most: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def connect(self, host: str, port: int, tls: bool) -> tuple[asyncio.StreamReader, _Inbox]:
        reader = asyncio.StreamReader()
        return reader, _Inbox(self, reader)

    async def answer(self, reader: asyncio.StreamReader, path: str, body: Any) -> None:
        self.seen.append((asyncio.get_running_loop().time(), path, body))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for wait, data in self.script(len(self.seen) - 1, path, body):
                await asyncio.sleep(wait)
                if data is None:
                    break
                reader.feed_data(data)
        finally:
            self.running -= 1
            reader.feed_eof()


class _Inbox:
    """What a client writes to."""

    def __init__(self, server: Scripted, reader: asyncio.StreamReader) -> None:
        self._server, self._reader, self._got = server, reader, b""
        self._task: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        self._got += data
        head, _, body = self._got.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) == length:
            path = head.split(b" ")[1].decode()
            read = json.loads(body) if body else None
            self._task = asyncio.ensure_future(self._server.answer(self._reader, path, read))
            self._server.tasks.add(self._task)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(body: object) -> bytes:
    return chunk(f"data: {json.dumps(body)}\n\n".encode())


def completion(
    first: float, gaps: Sequence[float], usage: bool = True, cached: int | None = None
) -> list[Act]:
    """A streamed completion: its first token after `first` seconds, the others after these gaps.

    Args:
        cached: of the prompt's 7 tokens, how many the usage has as cached; None: it does not say.
    """
    token = event({"choices": [{"text": "x"}]})
    acts: list[Act] = [(0.0, HEAD), (first, token), *((gap, token) for gap in gaps)]
    if usage:
        counts: dict[str, Any] = {"completion_tokens": 1 + len(gaps), "prompt_tokens": 7}
        if cached is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": cached}
        acts.append((0.0, event({"choices": [], "usage": counts})))
    return [*acts, (0.0, chunk(b"data: [DONE]\n\n")), (0.0, chunk(b""))]
