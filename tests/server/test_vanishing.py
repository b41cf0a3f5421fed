"""Crowds that vanish, speak slowly, halfway, or no HTTP: whatever they held is given back."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable

import pytest

from octavo.server.connections import ConnectionLimits
from octavo.server.run import Network
from support.fake_engine import FakeEngine
from support.live import BODY, GARBAGE, Running, closed, post, run, running, until

SHORT = Network(ConnectionLimits(header_timeout_s=0.3, keep_alive_s=1, write_timeout_s=0.3))
# Its answer has 400 kB.
LARGE = post({"prompt": "a" * 60_000, "return_token_strs": True}, "/tokenize")
HALF = post()[:-10]
POOLS = min(32, (os.cpu_count() or 1) + 4) + 2
"""Threads that a server starts when it first needs them, and keeps: asyncio's, and those of large bodies."""
Client = Callable[[Running], Awaitable[None]]


async def leaves_a_stream(server: Running) -> None:
    reader, writer = await server.connect(post())
    await asyncio.wait_for(reader.readuntil(b"data: "), 20)
    writer.transport.abort()


async def resets_a_stream(server: Running) -> None:
    reader, writer = await server.connect(post())
    await asyncio.wait_for(reader.readuntil(b"data: "), 20)
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def leaves_before_the_answer(server: Running) -> None:
    _, writer = await server.connect(post(BODY | {"stream": False}))
    await asyncio.sleep(0.02)
    writer.transport.abort()


async def until_closed(server: Running, data: bytes) -> None:
    """Say this much, and stay until the server has enough."""
    reader, writer = await server.connect(data)
    await closed(reader)
    writer.transport.abort()


async def says_nothing(server: Running) -> None:
    await until_closed(server, b"")


async def sends_half_a_head(server: Running) -> None:
    await until_closed(server, b"GET /health HTTP/1.1\r\nX: ")


async def sends_half_a_body(server: Running) -> None:
    _, writer = await server.connect(HALF)
    await asyncio.sleep(0.05)
    writer.transport.abort()


async def does_not_read(server: Running) -> None:
    _, writer = await server.connect(LARGE * 2, receive_buffer=4096)
    await asyncio.sleep(0.1)
    writer.transport.abort()


async def speaks_no_http(server: Running) -> None:
    for data in GARBAGE.values():
        await until_closed(server, data)


KINDS: tuple[Client, ...] = (
    leaves_a_stream, resets_a_stream, leaves_before_the_answer, says_nothing, sends_half_a_head,
    sends_half_a_body, does_not_read, speaks_no_http,
)  # fmt: skip


def held(server: Running, engine: FakeEngine) -> dict[str, int]:
    """Sequences (and so pages), places, bytes, sockets, threads."""
    state = server.app.state.octavo
    return {
        "sequences": len(engine.calls) - len(engine.ended) - len(engine.aborted),
        "waiting": state.queue.sequences.total() + state.queue.tokens.total(),
        "places": state.in_flight,
        "bytes": state.buffered,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


@pytest.mark.parametrize(
    "kinds", [*((kind,) for kind in KINDS), KINDS], ids=[*(k.__name__ for k in KINDS), "all"]
)
def test_what_a_crowd_held_is_given_back(kinds: tuple[Client, ...]) -> None:
    """Twice as many leave no more behind than half of them did: nothing."""

    async def test() -> None:
        engine = FakeEngine(reply="ab" * 5000, delay=0.002, max_model_len=1 << 20)
        async with running(engine, network=SHORT, send_buffer=65536) as server:

            async def crowd(count: int) -> None:
                await asyncio.gather(*(kinds[number % len(kinds)](server) for number in range(count)))

            def given_back(before: dict[str, int]) -> bool:
                now = held(server, engine)
                return all(now[name] <= before[name] for name in now)

            before = held(server, engine)
            await crowd(24)
            before["threads"] += POOLS
            await until(lambda: given_back(before))
            await crowd(48)
            await until(lambda: given_back(before))
            assert set(engine.ended).isdisjoint(engine.aborted)

    run(test)


def test_a_stream_beside_a_crowd_is_whole() -> None:
    async def test() -> None:
        engine = FakeEngine(reply="ab" * 100, delay=0.005, max_model_len=1 << 20)
        async with running(engine, network=SHORT, send_buffer=65536) as server:
            crowd = asyncio.gather(*(kind(server) for kind in KINDS * 6))
            honest = [await server.ask(post(more="Connection: close\r\n")) for _ in range(3)]
            await crowd
            assert [answer.count(b'"content":"') for answer in honest] == [
                honest[0].count(b'"content":"')
            ] * 3
            assert all(b"data: [DONE]" in answer for answer in honest)

    run(test)


def test_a_large_answer_is_really_not_through_when_its_client_leaves() -> None:
    """Or the crowd above would hold nothing that can be given back."""

    async def test() -> None:
        engine = FakeEngine(max_model_len=1 << 20)
        async with running(engine, send_buffer=65536) as server:
            await server.connect(LARGE * 2, receive_buffer=4096)
            await until(lambda: held(server, engine)["places"] == 1)
            await asyncio.sleep(0.3)
            assert held(server, engine)["places"] == 1

    run(test)
