"""While the engine's queue is full a request is refused unread, after all that strangers are asked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server import full
from octavo.server.app import create_app
from octavo.server.connections import ConnectionLimits
from octavo.server.edge import Edge, EdgeRules
from octavo.server.run import Network
from octavo.server.state import ServerSettings
from support.asgi import Reply, call
from support.fake_engine import FakeEngine
from support.live import HEALTH, Running, post, run, running, until

MOST = 8
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
KEY = {"authorization": "Bearer a"}


def ask(
    path: str,
    body: Any = None,
    *,
    waiting: int = MOST,
    in_flight: int = MOST,
    headers: dict[str, str] | None = None,
    method: str = "POST",
    draining: bool = False,
    **settings: Any,
) -> tuple[Reply, Any]:
    """The answer of a server whose engine has so many requests waiting, and the server's state."""
    engine = FakeEngine(max_waiting=MOST, max_sequences=2 * MOST)
    engine.counts.waiting = waiting
    app = create_app(engine, ServerSettings(**settings))
    state = app.state.octavo
    state.in_flight, state.draining = in_flight, draining
    edge = Edge(app, EdgeRules(frozenset()))

    async def over_http(scope: Any, receive: Any, send: Any) -> None:
        await edge({**scope, "http_version": "1.1"}, receive, send)

    body = b"{ this is no JSON" if body is None and method == "POST" else body
    return asyncio.run(call(over_http, method, path, body, headers=headers)), state


@pytest.mark.parametrize("path", [TEXT, CHAT, "/v1/responses", MESSAGES])
def test_what_would_wait_is_refused_unread(path: str) -> None:
    reply, state = ask(path)
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) >= 1
    assert "waiting already" in reply.json()["error"]["message"]
    assert state.rejections["overloaded"] == 1


@pytest.mark.parametrize(
    ("path", "changes", "status"),
    [
        (TEXT, {"waiting": MOST - 1}, 400),  # there is room, so the body is read
        (TEXT, {"in_flight": MOST - 1}, 400),  # the engine is asked later, and exactly
        ("/tokenize", {}, 400),  # which the engine's queue has nothing to do with
        ("/v1/models", {"method": "GET"}, 200),
        (TEXT, {"draining": True}, 503),
        (TEXT, {"headers": {"host": "evil.example"}}, 403),
        (TEXT, {"api_keys": ("a",)}, 401),
        (TEXT, {"api_keys": ("a",), "headers": KEY}, 429),
    ],
)
def test_what_is_asked_before_and_what_is_let_through(
    path: str, changes: dict[str, Any], status: int
) -> None:
    assert ask(path, **changes)[0].status == status


def test_the_refusal_is_in_the_words_of_the_path() -> None:
    assert ask(MESSAGES)[0].json()["type"] == "error"
    assert ask(CHAT)[0].json()["error"]["code"] == "overloaded"


def test_a_short_body_is_read_to_its_end_and_a_long_one_left() -> None:
    """A connection that is closed with unread bytes is reset, and the client never sees the answer."""
    taken = []

    async def receive() -> dict[str, Any]:
        taken.append(1)
        return {"type": "http.request", "body": b"x", "more_body": len(taken) < 3}

    for length, pieces in ((3, 3), (full.SHORT_BODY + 1, 0)):
        taken.clear()
        scope = {"headers": [(b"content-length", str(length).encode())]}
        asyncio.run(full._drop_body(scope, receive, 5.0))
        assert len(taken) == pieces


# --- at once, without h11 -------------------------------------------------------------------------

ASK = post(path=TEXT)


@asynccontextmanager
async def crowded(network: Network | None = None, **settings: Any) -> AsyncIterator[Running]:
    """A server over real sockets whose engine's queue is full until its engine counts fewer."""
    engine = FakeEngine(max_waiting=MOST, max_sequences=2 * MOST)
    engine.counts.waiting = MOST
    app = create_app(None, ServerSettings(**settings))
    async with running(engine, network=network, app=app) as server:
        app.state.octavo.in_flight += MOST
        try:
            yield server
        finally:
            app.state.octavo.in_flight -= MOST


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What h11 was given by clients."""
    found: list[bytes] = []
    real = h11.Connection.receive_data

    def receive_data(self: h11.Connection, data: bytes) -> None:
        if self.our_role is h11.SERVER:
            found.append(data)
        real(self, data)

    monkeypatch.setattr(h11.Connection, "receive_data", receive_data)
    return found


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, str], bytes]:
    """(status line, headers, body) of the next answer on a connection."""
    async with asyncio.timeout(20):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        return lines[0].encode(), headers, await reader.readexactly(int(headers["content-length"]))


def test_a_whole_request_is_refused_without_h11_and_the_next_one_is_served(parsed: list[bytes]) -> None:
    async def test() -> None:
        async with crowded() as server:
            reader, writer = await server.connect()
            for _ in range(3):
                writer.write(ASK)
                assert (await answer(reader))[0] == b"HTTP/1.1 429 Too Many Requests"
            assert parsed == []
            server.loaded.result().counts.waiting = 0
            writer.write(post({"prompt": "a", "max_tokens": 1}, TEXT))
            assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"
            assert len(parsed) == 1
            server.loaded.result().counts.waiting = MOST
            writer.write(ASK)
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 429")
            assert len(parsed) == 1

    run(test)


@pytest.mark.parametrize("path", [TEXT, MESSAGES])
@pytest.mark.parametrize("key", ["", "Authorization: Bearer a\r\n", "Authorization: Bearer b\r\n"])
def test_both_ways_say_and_count_the_same(path: str, key: str, parsed: list[bytes]) -> None:
    async def test() -> None:
        async with crowded(api_keys=("a",)) as server:
            state, counted = server.app.state.octavo, list[tuple[str, str, int]]()
            count = state.metrics.count_http
            state.metrics.count_http = lambda *what: (counted.append(what), count(*what))
            ask = post(path=path, more=key)
            reader, writer = await server.connect(ask)
            whole = await answer(reader)
            assert parsed == []
            writer.write(ask[:-1])
            await until(lambda: parsed)
            writer.write(ask[-1:])
            pieces = await answer(reader)
            await until(lambda: len(parsed) == 2)
            for found in (whole, pieces):
                assert len(found[1].pop("x-request-id", found[1].pop("request-id", ""))) > 32
                assert found[1].pop("date")
            assert whole == pieces
            assert counted[0] == counted[1]
            assert list(state.rejections.values()) == [2]

    run(test)


def test_a_body_that_looks_like_a_request_is_none(parsed: list[bytes]) -> None:
    inner = post({"prompt": "a"}, "/tokenize")
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(inner)}\r\n\r\n".encode()

    async def test() -> None:
        async with crowded() as server:
            reader, writer = await server.connect(head + inner)
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 429")
            writer.write(HEALTH)
            assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"
            assert parsed == [HEALTH]

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        ASK[:-1],
        ASK + b" ",
        ASK + ASK,
        ASK.partition(b"\r\n\r\n")[0],
        b"\r\n" + ASK,
        ASK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        ASK.replace(b"POST", b"GET"),
        ASK.replace(TEXT.encode(), TEXT.encode() + b"?a=b"),
        ASK.replace(TEXT.encode(), b"http://localhost" + TEXT.encode()),
        ASK.replace(b"Host: localhost\r\n", b""),
        ASK.replace(b"Host: localhost\r\n", b"Host: localhost\r\nhost: other\r\n"),
        ASK.replace(b"Host: localhost\r\n", b"Host: localhost\n"),
        ASK.replace(b"Host: localhost\r\n", b"Host: localhost\r\n more\r\n"),
        ASK.replace(b"Host: ", b"Host : "),
        ASK.replace(b"Host: localhost", b"Host: local\0host"),
        ASK.replace(b"Content-Length", b"Content-Length: 1\r\nContent-Length"),
        ASK.replace(b"Content-Length: ", b"Content-Length: +"),
        ASK.replace(b"Content-Length: ", b"Content-Length: " + b"0" * 5000),
        ASK.replace(b"Content-Length: ", b"Content-Length: 1, "),
        ASK.replace(b"Content-Length", b"X-Length"),
        *(
            post(path=TEXT, more=f"{line}\r\n")
            for line in (
                "Transfer-Encoding: chunked", "transfer-encoding: identity", "Connection: close",
                "Connection: Upgrade", "Upgrade: h2c", "Expect: 100-continue", "Origin: http://localhost",
                "X-Request-Id: a",
            )
        ),
    ],
)  # fmt: skip
def test_what_two_servers_may_read_differently_is_left_to_h11(data: bytes) -> None:
    assert full.read_whole(ASK) is not None
    assert full.read_whole(post(path=TEXT, more="Connection: Keep-Alive\r\nX-A:b\r\n")) is not None
    assert full.read_whole(data) is None


@given(st.lists(st.tuples(st.integers(0, len(ASK)), st.integers(0, 2), st.binary(max_size=3)), max_size=3))
def test_what_is_read_as_a_whole_request_h11_reads_so_too(cuts: list[tuple[int, int, bytes]]) -> None:
    data = ASK
    for at, gone, new in cuts:
        data = data[:at] + new + data[at + gone :]
    scope = full.read_whole(data)
    if scope is None:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert sorted((name.lower(), value) for name, value in request.headers) == sorted(scope["headers"])
    assert (request.method, request.target) == (b"POST", scope["path"].encode())
    assert h11.EndOfMessage in [type(connection.next_event()) for _ in range(3)]
    assert connection.trailing_data == (b"", False)


def test_a_refused_connection_is_kept_as_long_as_an_answered_one(parsed: list[bytes]) -> None:
    limits = ConnectionLimits(header_timeout_s=0.3, keep_alive_s=1)

    async def test() -> None:
        async with crowded(Network(limits)) as server:
            assert (await server.ask(ASK)).startswith(b"HTTP/1.1 429")
            assert parsed == []
            assert not server.app.state.edge.closed, "it was not for want of a head"

    run(test)


def test_a_server_that_drains_or_records_leaves_all_to_the_app(parsed: list[bytes]) -> None:
    records: list[int] = []

    async def recorded() -> None:
        network = Network(readers=(lambda record, scope: records.append(record.status),))
        async with crowded(network) as server:
            reader, _ = await server.connect(ASK)
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 429")

    async def draining() -> None:
        async with crowded() as server:
            server.app.state.octavo.draining = True
            assert (await server.ask(ASK)).startswith(b"HTTP/1.1 503")
            server.app.state.octavo.draining = False

    run(recorded)
    assert (records, len(parsed)) == ([429], 1)
    run(draining)
    assert len(parsed) == 2


def test_it_takes_a_fraction_of_the_calls() -> None:
    """Counted between the request and its answer, as Python's profiler sees them."""

    async def calls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: list[bytes]) -> int:
        found = 0

        def seen(frame: object, event: str, argument: object) -> None:
            nonlocal found
            found += event == "call"

        for piece in pieces:
            await asyncio.sleep(0.05)
            sys.setprofile(seen)
            writer.write(piece)
        await answer(reader)
        sys.setprofile(None)
        return found

    async def test() -> None:
        async with crowded() as server:
            reader, writer = await server.connect()
            await calls(reader, writer, [ASK])
            whole = await calls(reader, writer, [ASK])
            by_h11 = await calls(reader, writer, [ASK.replace(b"Host:", b"X-Request-Id: a\r\nHost:")])
            assert whole < by_h11 / 3

    run(test)
