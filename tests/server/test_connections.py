"""Connections that are silent, slow, too many, or no HTTP. Over real sockets, with short times."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import ssl
import weakref
from pathlib import Path

import pytest

from octavo.server import connections
from octavo.server.app import create_app
from octavo.server.connections import ConnectionLimits, Connections, network_of
from octavo.server.listen import bind, raise_open_files, tls_context
from octavo.server.run import Network
from octavo.server.state import ServerSettings
from support.fake_engine import FakeEngine
from support.live import BODY, CHAT, GARBAGE, HEALTH, Running, closed, post, run, running, until

SHORT = Network(ConnectionLimits(header_timeout_s=0.3, keep_alive_s=1, write_timeout_s=0.3))
TLS = Path(__file__).resolve().parents[1] / "support" / "tls"
# Its answer has 400 kB.
LARGE = post({"prompt": "a" * 60_000, "return_token_strs": True}, "/tokenize")


@pytest.mark.parametrize(
    "data",
    [b"", b"\r\n", b"GET /health HTTP/1.1\r\nX: ", HEALTH + b"GET /he"],
    ids=["silent", "newline", "half a head", "half a second head"],
)
def test_a_connection_without_a_whole_head_is_closed(data: bytes) -> None:
    async def test() -> None:
        async with running(FakeEngine(), network=SHORT) as server:
            answer = await server.ask(data)
            assert answer.count(b"200 OK") == data.count(HEALTH)

    run(test)


def test_a_head_that_comes_byte_by_byte_is_closed() -> None:
    async def test() -> None:
        async with running(FakeEngine(), network=SHORT) as server:
            reader, writer = await server.connect(b"GET /health HTTP/1.1\r\nX: ")
            ended = asyncio.ensure_future(closed(reader))
            while not ended.done():
                writer.write(b"a")
                await asyncio.sleep(0.02)
            assert await ended == b""

    run(test)


def test_a_refused_body_that_drips_is_closed() -> None:
    """The answer came long before the body's end, which nobody waits for."""

    async def test() -> None:
        app = create_app(None, ServerSettings(api_keys=("k",)))
        async with running(FakeEngine(), network=SHORT, app=app) as server:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
            reader, writer = await server.connect(head.encode())
            ended = asyncio.ensure_future(closed(reader))
            while not ended.done():
                writer.write(b"a")
                await asyncio.sleep(0.02)
            assert (await ended).startswith(b"HTTP/1.1 401")

    run(test)


def test_a_request_that_waits_for_the_engine_is_not_idle() -> None:
    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        async with running(engine, network=SHORT) as server:
            asked = asyncio.ensure_future(server.client.post(CHAT, json=BODY | {"stream": False}))
            await asyncio.sleep(1.0)  # several times the limits
            assert engine.hold is not None
            engine.hold.set()
            assert (await asked).status_code == 200

    run(test)


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why connections were given up."""
    found: list[str] = []
    real = connections.Connection.give_up

    def give_up(self: connections.Connection, reason: str) -> None:
        found.append(reason)
        real(self, reason)

    monkeypatch.setattr(connections.Connection, "give_up", give_up)
    return found


def test_a_client_that_does_not_read_gives_its_place_back(reasons: list[str]) -> None:
    async def test() -> None:
        app = create_app(None, ServerSettings(max_concurrent_requests=1))
        async with running(
            FakeEngine(max_model_len=1 << 20), network=SHORT, app=app, send_buffer=65536
        ) as server:
            await server.connect(LARGE * 2, receive_buffer=4096)
            await until(lambda: reasons)
            assert reasons == ["write_timeout"]
            await until(lambda: app.state.octavo.in_flight == 0)
            assert (await server.client.post(CHAT, json=BODY)).status_code == 200

    run(test)


def test_a_slow_reader_is_waited_for_as_long_as_it_reads(reasons: list[str]) -> None:
    """It takes a little every tenth of a second, and in all twice the timeout."""

    async def test() -> None:
        timeout = 2.0
        network = Network(ConnectionLimits(keep_alive_s=1, write_timeout_s=timeout))
        app = create_app(None)
        async with running(
            FakeEngine(max_model_len=1 << 20), network=network, app=app, send_buffer=65536
        ) as server:
            reader, writer = await server.connect(LARGE * 3, receive_buffer=4096)
            await until(lambda: app.state.octavo.in_flight)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            begun = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - begun < 2 * timeout:
                assert await asyncio.wait_for(reader.read(1 << 14), 20), "it was cut"
                await asyncio.sleep(0.1)
            rest = await closed(reader)
            assert len(rest) > 200_000, "the server's buffers were empty before"
            assert rest.endswith(b"}")
            assert "write_timeout" not in reasons

    run(test)


def test_answers_that_nobody_reads_end_with_the_drain(reasons: list[str]) -> None:
    async def test() -> None:
        app = create_app(None)
        async with running(FakeEngine(max_model_len=1 << 20), 0.05, app=app, send_buffer=65536) as server:
            # The write timeout is far away.
            await server.connect(LARGE * 2, receive_buffer=4096)
            await until(lambda: app.state.octavo.in_flight)
            await asyncio.sleep(0.5)
            os.kill(os.getpid(), signal.SIGTERM)
            assert not await asyncio.wait_for(server.done, 20)
            assert reasons == ["drain"]

    run(test)


def test_what_has_ended_needs_no_pass_of_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither connections nor their transports refer to themselves: thousands of them go at once."""
    made: list[weakref.ref[object]] = []
    real = connections.Connection.connection_made

    def connection_made(self: connections.Connection, transport: asyncio.Transport) -> None:
        made.extend([weakref.ref(self), weakref.ref(transport)])
        real(self, transport)

    monkeypatch.setattr(connections.Connection, "connection_made", connection_made)

    async def test() -> None:
        async with running(FakeEngine()) as server:
            await server.ask(
                post(BODY | {"stream": True}, more="Connection: close\r\n")
            )  # what is kept is made
            gc.collect()
            gc.disable()
            try:
                made.clear()
                for stream in (True, False) * 5:
                    await server.ask(post(BODY | {"stream": stream}, more="Connection: close\r\n"))
                await until(lambda: len(made) == 20 and not any(each() for each in made))
            finally:
                gc.enable()

    run(test)


@pytest.mark.parametrize("pipelined", [b"", HEALTH, post()], ids=["alone", "health behind", "post behind"])
def test_a_client_that_leaves_is_seen_behind_pipelined_requests(pipelined: bytes) -> None:
    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        async with running(engine) as server:
            _, writer = await server.connect(post(BODY | {"stream": False}))
            await until(lambda: engine.calls)
            writer.write(pipelined)
            await asyncio.sleep(0.05)
            writer.write(pipelined)
            await asyncio.sleep(0.05)
            writer.transport.abort()
            await until(lambda: engine.aborted)
            assert server.app.state.octavo.in_flight == 0

    run(test)


@pytest.mark.parametrize("together", [True, False])
def test_pipelined_requests_are_answered_in_order(together: bool) -> None:
    async def test() -> None:
        async with running(FakeEngine(), network=SHORT) as server:
            asked = [post(BODY | {"stream": False}), HEALTH, HEALTH] * 20
            reader, writer = await server.connect(b"".join(asked) if together else asked[0])
            for each in asked[1:] if not together else ():
                writer.write(each)
                await asyncio.sleep(0.001)
            answer = await closed(reader)
            assert [b"x-request-id" in part for part in answer.split(b"HTTP/1.1 200")[1:]] == [
                True,
                False,
                False,
            ] * 20

    run(test)


def test_what_waits_behind_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_BEHIND", 4096)

    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        async with running(engine) as server:
            reader, writer = await server.connect(post(BODY | {"stream": False}))
            await until(lambda: engine.calls)
            ended = asyncio.ensure_future(closed(reader))
            while not ended.done():
                writer.write(HEALTH * 10)
                await asyncio.sleep(0.001)
            await until(lambda: engine.aborted)

    run(test)


def test_what_waits_behind_all_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_BEHIND_ALL", 3 * len(HEALTH))

    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        async with running(engine) as server:
            readers = [(await server.connect(post() + HEALTH * 2))[0] for _ in range(3)]
            await until(lambda: len(engine.calls) == 3)
            await until(lambda: len(engine.aborted) == 2)
            assert [await asyncio.wait_for(reader.read(12), 20) for reader in readers].count(b"") <= 2
            assert engine.hold is not None
            engine.hold.set()
            await until(lambda: engine.ended)

    run(test)


async def probe_idle(server: Running, count: int) -> list[asyncio.StreamReader]:
    return [(await server.connect())[0] for _ in range(count)]


@pytest.mark.parametrize(
    "limits",
    [ConnectionLimits(max_connections=8), ConnectionLimits(max_connections_per_address=8)],
    ids=["in all", "of one address"],
)
def test_silent_connections_give_way(limits: ConnectionLimits) -> None:
    """So that many times more than may be open keep nobody out, and never more than the bound are open."""

    async def test() -> None:
        async with running(FakeEngine(), network=Network(limits)) as server:
            readers = await probe_idle(server, 40)
            await asyncio.gather(*(closed(reader) for reader in readers[:32]))
            assert (await server.client.get("/health")).status_code == 200
            assert not readers[-1].at_eof()

    run(test)


@pytest.mark.parametrize(
    "limits",
    [ConnectionLimits(max_connections=3), ConnectionLimits(max_connections_per_address=3)],
    ids=["in all", "of one address"],
)
def test_busy_connections_give_way_to_nobody(limits: ConnectionLimits) -> None:
    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        async with running(engine, network=Network(limits)) as server:
            readers = [(await server.connect(post()))[0] for _ in range(3)]
            await until(lambda: len(engine.calls) == 3)
            assert await server.ask(HEALTH) == b""
            assert engine.hold is not None
            engine.hold.set()
            for reader in readers:
                assert b"[DONE]" in await closed(reader)
            assert (await server.client.get("/health")).status_code == 200

    run(test)


def test_places_come_back() -> None:
    async def test() -> None:
        async with running(FakeEngine(), network=Network(ConnectionLimits(max_connections=4))) as server:
            for _ in range(20):
                assert (
                    await server.ask(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                ).endswith(b"}")
            for data in (b"\0\0\0\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", post()[:-3]):
                _, writer = await server.connect(data)
                await asyncio.sleep(0.02)
                writer.transport.abort()
            held = [await server.connect(post(BODY | {"stream": False})) for _ in range(4)]
            for reader, _ in held:
                await asyncio.wait_for(reader.readuntil(b"200 OK"), 20)

    run(test)


def test_when_the_system_has_no_more_sockets_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "PAUSE_S", 0.05)
    caplog.set_level(logging.WARNING)

    async def test() -> None:
        async with running(FakeEngine()) as server:
            real, tries = socket.socket.accept, []

            def accept(listener: socket.socket) -> object:
                tries.append(1)
                if len(tries) <= 30:
                    raise OSError(errno.EMFILE, "Too many open files")
                return real(listener)

            monkeypatch.setattr(socket.socket, "accept", accept)
            assert (await server.client.get("/health")).status_code == 200
            assert len(tries) > 30

    run(test)
    lines = [record for record in caplog.records if "cannot accept" in record.getMessage()]
    assert 1 <= len(lines) <= 10, "one a pause, and few of them"
    assert len(caplog.records) == len(lines)


def test_the_kernel_asks_silent_peers() -> None:
    left, right = socket.socketpair()
    with (
        left,
        right,
        bind("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        for each in (left, client):
            connections.find_dead_peers(each)
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_http_is_400_and_closed(data: bytes) -> None:
    async def test() -> None:
        async with running(FakeEngine(), network=SHORT) as server:
            answer = await server.ask(data)
            assert b" 200 " not in answer
            assert answer[:13] in (b"HTTP/1.1 400 ", b""), "a reset may overtake it"

    run(test)


def test_garbage_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a line each, nor a trace: what breaks after an answer has begun is closed in silence."""
    caplog.set_level(logging.WARNING)
    chunked = post().replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nX-Length")

    async def test() -> None:
        app = create_app(None, ServerSettings(api_keys=("k",)))
        limits = ConnectionLimits(header_timeout_s=0.3, keep_alive_s=1)
        async with running(FakeEngine(), network=Network(limits), app=app) as server:
            upgrade = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            await asyncio.gather(*(server.ask(data) for data in [*GARBAGE.values(), chunked, upgrade] * 8))

    run(test)
    assert len(caplog.records) <= 2 * 10 + 2
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("length", "version"), [("Content-Length: 5\r\n", "1.1"), ("", "1.0")], ids=["with a length", "in 1.0"]
)
def test_a_body_of_two_lengths_is_400_and_the_connection_ends(length: str, version: str) -> None:
    async def test() -> None:
        async with running(FakeEngine()) as server:
            head = (
                f"POST {CHAT} HTTP/{version}\r\nHost: localhost\r\n{length}Transfer-Encoding: chunked\r\n\r\n"
            )
            answer = await server.ask(head.encode() + b"0\r\n\r\n" + HEALTH)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert version == "1.0" or b"connection: close" in answer
            assert answer.count(b"HTTP/1.1") == 1

    run(test)


def test_accepting_leaves_room_for_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a crowd that comes at once, the loop takes a slice at a time."""
    accepted: list[int] = []

    async def test() -> None:
        async with running(FakeEngine()) as server:
            turn = 0
            real = connections.Connections.take

            def take(self: Connections, address: str) -> bool:
                accepted.append(turn)
                return real(self, address)

            monkeypatch.setattr(connections.Connections, "take", take)
            crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(64)]
            while len(accepted) < 64:
                await asyncio.sleep(0)
                turn += 1
            for each in crowd:
                each.close()

    run(test)
    assert max(accepted.count(turn) for turn in accepted) <= connections.SLICE


@pytest.mark.parametrize(
    ("name", "network"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3::4", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_who_shares_a_bound(name: object, network: str) -> None:
    assert network_of(name) == network


@pytest.mark.parametrize(
    ("soft", "hard", "most"), [(256, 1024, 1024), (1024, 1024, 1024), (256, 10**6, 65_536)]
)
def test_the_limit_of_open_files_is_raised_and_kept(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int
) -> None:
    import resource

    now = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: now.append(pair))
    room = raise_open_files()
    assert now[-1] == (most, hard)
    assert 0 < most - room < 200 + len(os.listdir("/proc/self/fd"))


def test_a_loop_that_stood_still_judges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients sent meanwhile is read first."""
    swept: list[float] = []
    monkeypatch.setattr(Connections, "sweep", lambda self, now: swept.append(now))

    async def test() -> None:
        async with running(FakeEngine(), network=SHORT):
            await until(lambda: len(swept) > 2)
            monkeypatch.setattr(connections, "LATE_S", -1.0)
            count = len(swept)
            await asyncio.sleep(0.5)
            assert len(swept) <= count + 1

    run(test)


def test_what_is_no_tls_is_closed_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    context = tls_context(TLS / "cert.pem", TLS / "key.pem", None)
    limits = ConnectionLimits(max_connections=4)

    async def test() -> None:
        async with running(FakeEngine(), network=Network(limits, tls=context)) as server:
            for _ in range(8):  # each gives its place back
                assert b"HTTP/1.1" not in await server.ask(HEALTH)
            for _ in range(8):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", server.port, ssl=ssl.create_default_context(cafile=TLS / "cert.pem"),
                    server_hostname="localhost",
                )  # fmt: skip
                writer.write(HEALTH)
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
                writer.transport.abort()

    run(test)
    assert not caplog.records
