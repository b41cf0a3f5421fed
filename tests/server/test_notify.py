"""What systemd is told, and when; and a log that clients cannot fill."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path

import pytest

from octavo.server import log_limit
from octavo.server.log_limit import RateFilter
from octavo.server.notify import Notifier, keep_alive
from octavo.server.run import Network
from support.fake_engine import FakeEngine
from support.live import run, running, until


@pytest.fixture
def systemd(tmp_path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.setblocking(False)
    return listener


def heard(systemd: socket.socket) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            lines += systemd.recv(4096).decode().splitlines()
        except BlockingIOError:
            return lines


def test_systemd_hears_of_every_state(systemd: socket.socket) -> None:
    notifier = Notifier(systemd.getsockname(), 0.03)
    engine = FakeEngine()

    async def test() -> None:
        async with running(None, network=Network(notifier=notifier)) as server:
            await server.client.get("/health")
            assert set(heard(systemd)) <= {"WATCHDOG=1"}, "not ready while it loads"
            server.loaded.set_result(engine)
            await server.heard.is_ready.wait()
            await asyncio.sleep(0.1)
            assert {"READY=1", "WATCHDOG=1"} <= set(heard(systemd))
            engine.healthy = False
            await asyncio.sleep(0.1)
            heard(systemd)
            await asyncio.sleep(0.1)
            assert heard(systemd) == [], "who hangs is not alive"
            engine.healthy = True
            os.kill(os.getpid(), signal.SIGTERM)
            await server.done
            assert "STOPPING=1" in heard(systemd)

    with systemd:
        run(test)


def test_who_hears_and_how_long_it_waits() -> None:
    told = {"NOTIFY_SOCKET": "@a", "WATCHDOG_USEC": "30000000"}
    assert Notifier.from_environment(told) == Notifier("@a", 30.0)
    assert Notifier.from_environment(told | {"WATCHDOG_PID": str(os.getpid())}).watchdog_s == 30.0
    assert Notifier.from_environment(told | {"WATCHDOG_PID": "1"}).watchdog_s == 0.0
    assert Notifier.from_environment(told | {"WATCHDOG_USEC": "soon"}).watchdog_s == 0.0
    assert Notifier.from_environment({}) == Notifier()
    asyncio.run(keep_alive(Notifier(), lambda: True))  # ends at once: nobody waits


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "@octavo-nobody", "x" * 400])
def test_a_listener_that_is_gone_is_no_error(address: str) -> None:
    Notifier(address, 1.0).send("READY=1")


def test_the_abstract_namespace_is_heard() -> None:
    name = f"octavo-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        listener.setblocking(False)
        Notifier("@" + name).send("READY=1")
        assert heard(listener) == ["READY=1"]


def test_a_service_is_ready_for_those_who_come_after_a_delay() -> None:
    """While /ready and /health say no, requests are answered; then they are refused."""

    async def test() -> None:
        engine = FakeEngine()
        async with running(engine, network=Network(drain_delay_s=1000.0)) as server:
            os.kill(os.getpid(), signal.SIGTERM)
            await server.heard.is_leaving.wait()
            states = [(await server.client.get(path)).status_code for path in ("/live", "/ready", "/health")]
            assert states == [200, 503, 503]
            assert (await server.client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
            os.kill(os.getpid(), signal.SIGTERM)  # who does not want to wait
            await until(lambda: engine.shut)

    run(test)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(text: str, *args: object, name: str = "octavo.server") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, text, args, None)


def test_a_kind_of_line_is_written_a_few_times_and_then_counted() -> None:
    clock = Clock()
    bounded = RateFilter(clock)
    written = [bounded.filter(record("invalid %s", i)) for i in range(100)]
    assert written == [True] * log_limit.LINES + [False] * (100 - log_limit.LINES)
    assert bounded.filter(record("another kind"))
    clock.now = log_limit.PERIOD_S
    later = record("invalid %s", 7)
    assert bounded.filter(later)
    assert later.getMessage() == "invalid 7 (and 90 more such lines)"


def test_access_lines_are_bounded_where_the_key_was_wrong() -> None:
    bounded = RateFilter(Clock())
    written = {
        status: sum(
            bounded.filter(record("%s %d", "client", status, name="octavo.access")) for _ in range(50)
        )
        for status in (200, 401, 429)
    }
    assert written == {200: 50, 401: log_limit.LINES, 429: 50}


def test_kinds_are_bounded_too() -> None:
    bounded = RateFilter(Clock())
    for i in range(10 * log_limit.MAX_KINDS):
        bounded.filter(record(f"invalid {i}"))
    assert len(bounded._kinds) <= log_limit.MAX_KINDS
