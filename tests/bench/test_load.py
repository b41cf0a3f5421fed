"""The load generator against servers that answer well, badly and not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo.bench.load import Client, LoadResult, Reply, Target, load, summary
from octavo.bench.workload import random_prompts
from octavo.errors import InvalidRequestError, OctavoError

Handler = Callable[[dict[str, Any] | None, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"object": "list", "data": [{"id": "tiny"}]}'


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(**body: object) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def answer(tokens: int) -> bytes:
    """All events of a completion."""
    texts = [event(choices=[{"text": "x"}]) for _ in range(tokens)]
    return b"".join(texts) + event(choices=[], usage={"completion_tokens": tokens}) + b"data: [DONE]\n\n"


async def good(body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
    if body is None:
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(MODELS)}\r\n\r\n".encode() + MODELS)
        return
    assert (body["model"], body["stream"], body["ignore_eos"]) == ("tiny", True, True)
    writer.write(OK + chunk(answer(body["max_tokens"])) + chunk(b""))


def run_against(handler: Handler, use: Callable[[str], Awaitable[Any]]) -> Any:
    """What use(url) returns while a server answers each request with the handler."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length)) if length else None
        try:
            await handler(body, writer)
            await writer.drain()
        finally:
            writer.close()

    async def main() -> Any:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        async with server:
            return await use(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    return asyncio.run(main())


def load_of(handler: Handler, count: int = 6, users: int = 2, **options: Any) -> LoadResult:
    prompts = random_prompts(count, 5, 1000)
    found = run_against(handler, lambda url: load(Target(url, **options), prompts, users, 3, 2))
    assert isinstance(found, LoadResult)
    return found


def test_every_prompt_is_answered_once() -> None:
    seen: list[list[int]] = []

    async def noting(body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
        if body is not None:
            seen.append(body["prompt"])
        await good(body, writer)

    result = load_of(noting)
    assert sorted(seen) == sorted(random_prompts(6, 5, 1000))
    assert (result.requests, result.failed, result.output_tokens, result.errors) == (6, 0, 18, {})
    assert result.output_rate > 0
    assert result.ttft_p50 is not None
    assert result.latency_p99 is not None
    assert 0 < result.ttft_p50 <= result.latency_p99


def test_users_wait_for_their_answers() -> None:
    running, most = 0, 0

    async def counting(body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        if body is not None:
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
        await good(body, writer)

    assert load_of(counting, count=9, users=3).failed == 0
    assert most == 3


@pytest.mark.parametrize("cut", range(1, 200, 7))
def test_chunks_may_end_anywhere(cut: int) -> None:
    async def sliced(body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
        if body is None:
            return await good(body, writer)
        data = answer(3)
        writer.write(OK + b"".join(chunk(data[i : i + cut]) for i in range(0, len(data), cut)) + chunk(b""))

    result = load_of(sliced, count=1, users=1)
    assert (result.failed, result.output_tokens) == (0, 3)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n", "HTTP 429"),
        (b"", "no HTTP answer"),
        (OK + chunk(event(choices=[{"text": "x"}])) + chunk(b""), "the stream ended early"),
        (OK + chunk(event(error={"message": "no"})) + chunk(b""), "the stream ended with an error"),
        (OK + b"5\r\nab", "broken answer: IncompleteReadError"),
        (OK + b"what\r\n", "broken answer: ValueError"),
    ],
)
def test_failures_are_counted_by_name(sent: bytes, error: str) -> None:
    async def bad(body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
        if body is None:
            return await good(body, writer)
        writer.write(sent)

    result = load_of(bad, count=3)
    assert (result.failed, result.output_tokens, result.errors) == (3, 0, {error: 3})
    assert (result.output_rate, result.ttft_p50, result.gap_p99) == (0.0, None, None)


async def silent(body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
    if body is None:
        return await good(body, writer)
    await asyncio.sleep(5)


def test_a_silent_server_is_given_up() -> None:
    assert load_of(silent, count=2, request_timeout_s=0.05).errors == {"timed out": 2}


def test_the_whole_load_ends_in_time() -> None:
    result = load_of(silent, count=5, timeout_s=0.05)
    assert result.errors == {"not answered in time": 5}


def test_nobody_answers() -> None:
    with pytest.raises(OctavoError, match=r"no answer from 127\.0\.0\.1:1: "):
        asyncio.run(load(Target("http://127.0.0.1:1"), [[1]], 1, 1, 1))


def test_a_server_without_models() -> None:
    async def empty(body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n{}")

    with pytest.raises(OctavoError, match="lists no models"):
        run_against(empty, lambda url: load(Target(url), [[1]], 1, 1, 1))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "", "http://x:y"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="no http:// address"):
        Client(url)


def test_a_load_of_nothing() -> None:
    with pytest.raises(InvalidRequestError, match="at least one user"):
        asyncio.run(load(Target("http://127.0.0.1:1"), [], 1, 1, 1))


def test_figures_of_known_replies() -> None:
    replies = [
        Reply(tokens=10, first_s=0.1, total_s=1.0, gaps=[0.1, 0.2]),
        Reply(tokens=20, first_s=0.3, total_s=2.0, gaps=[0.4]),
        Reply(tokens=99, error="x"),
    ]
    found = summary(2, replies, seconds=2.0, cpu_seconds=0.4, cores=2)
    assert (found.requests, found.failed, found.output_tokens, found.output_rate) == (3, 1, 30, 15.0)
    assert (found.ttft_p50, found.ttft_p99, found.gap_p50, found.gap_p99) == (100.0, 300.0, 200.0, 400.0)
    assert (found.latency_p50, found.latency_p99, found.cpu_share) == (1000.0, 2000.0, 0.1)
