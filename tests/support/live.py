"""The real server over real sockets in this process's loop, behind it a scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.listen import bind
from octavo.server.run import Network, serve
from octavo.server.signals import stop_signals
from support.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
GARBAGE = {
    "binary": b"\0\1\2\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "negative": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "long head": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000,
    "bad chunk": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
}
"""What is no HTTP."""


def post(body: object = BODY, path: str = CHAT, more: str = "") -> bytes:
    """A whole request, as it is sent; more: further lines of its head."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


class Heard:
    """What the server has told."""

    def __init__(self) -> None:
        self.is_ready, self.is_leaving = asyncio.Event(), asyncio.Event()
        self.finishing = list[int]()

    def ready(self, engine: object) -> None:
        self.is_ready.set()

    def leaving(self, delay_s: float) -> None:
        self.is_leaving.set()

    def draining(self, num_requests: int) -> None:
        self.finishing.append(num_requests)


@dataclass
class Running:
    """A server, and a client for it."""

    client: httpx.AsyncClient
    done: asyncio.Future[bool]
    loaded: asyncio.Future[FakeEngine]
    heard: Heard
    port: int
    app: FastAPI
    _raw: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(
        self, data: bytes = b"", receive_buffer: int | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that says this much. With receive_buffer nothing is read until asked."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        if receive_buffer is not None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        self._raw.append(writer)
        writer.write(data)
        return reader, writer

    async def ask(self, data: bytes) -> bytes:
        """All that one connection is answered, until the server closes it."""
        reader, _ = await self.connect(data)
        return await closed(reader)

    def close(self) -> None:
        for writer in self._raw:
            writer.transport.abort()


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the server closes the connection, or resets it."""
    parts = []
    try:
        while part := await asyncio.wait_for(reader.read(1 << 16), 20):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


async def until(true: Callable[[], object]) -> None:
    """Wait for it; the caller's test times out where it never comes."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    engine: FakeEngine | None,
    drain_timeout_s: float = 10.0,
    network: Network | None = None,
    app: FastAPI | None = None,
    send_buffer: int | None = None,
) -> AsyncIterator[Running]:
    """Args: send_buffer: bytes that the system takes of an answer before the client reads."""
    listener = bind("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port = listener.getsockname()[1]
    loaded: asyncio.Future[FakeEngine] = asyncio.get_running_loop().create_future()
    heard, app = Heard(), app or create_app(None)

    async def until_signal() -> bool:
        with stop_signals() as signals:
            return await serve(app, listener, loaded, heard, signals, drain_timeout_s, network)

    done = asyncio.ensure_future(until_signal())
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        if engine is not None:
            loaded.set_result(engine)
            await heard.is_ready.wait()
        server = Running(client, done, loaded, heard, port, app)
        try:
            yield server
        finally:
            server.close()
            if not done.done():
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait({done}, timeout=20)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]
