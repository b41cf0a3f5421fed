"""Signals: they reach a loop that hears them, and end the process where nobody does."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from octavo.server import signals
from octavo.server.signals import STALLED, StopSignals, stop_signals

LONG = 30.0


def send(name: signal.Signals) -> None:
    os.kill(os.getpid(), name)


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), LONG)


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_drains(name: signal.Signals) -> None:
    kept = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's "ignore" would be respected
    try:
        drains(name)
    finally:
        signal.signal(signal.SIGHUP, kept)


def drains(name: signal.Signals) -> None:
    async def test() -> None:
        with stop_signals() as caught:
            send(name)
            await soon(caught.stop)
            assert not caught.kill.is_set()

    before = signal.getsignal(name)
    asyncio.run(test())
    assert signal.getsignal(name) is before


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_the_second_one_kills_and_a_terminal_that_closes_does_not(name: signal.Signals) -> None:
    async def test() -> None:
        with stop_signals() as caught:
            send(name)
            await soon(caught.stop)
            send(signal.SIGHUP)
            await asyncio.sleep(0.1)
            assert not caught.kill.is_set()
            send(name)
            await soon(caught.kill)

    asyncio.run(test())


def test_a_signal_before_there_is_a_loop_is_heard_by_it() -> None:
    async def test(caught: StopSignals) -> None:
        caught.bind()
        await soon(caught.stop)

    with stop_signals() as caught:
        send(signal.SIGTERM)
        asyncio.run(test(caught))


def test_nohup_is_obeyed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [1, 2])
def test_a_main_thread_that_hangs_is_ended(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands still here in a wait that no handler can run beside."""
    monkeypatch.setattr(signals, "KILL_S", 0.05)
    statuses: list[int] = []
    left = threading.Event()

    def leave(status: int) -> None:
        statuses.append(status)
        left.set()

    async def test() -> None:
        with stop_signals(LONG if number == 2 else 0.05, leave):
            for _ in range(number):
                send(signal.SIGTERM)
                if number == 2:
                    await asyncio.sleep(0.1)
            assert left.wait(LONG)

    asyncio.run(test())
    assert statuses == [STALLED if number == 1 else 128 + signal.SIGTERM]
    assert "the server did not end in time" in capsys.readouterr().err


def test_who_ends_in_time_is_left_alone() -> None:
    statuses: list[int] = []

    async def test() -> None:
        with stop_signals(LONG, statuses.append) as caught:
            send(signal.SIGTERM)
            await soon(caught.stop)

    asyncio.run(test())
    assert not statuses


def test_what_a_forked_child_is_sent_does_not_reach_the_parent() -> None:
    async def test() -> None:
        with stop_signals() as caught:
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
            await asyncio.sleep(0.1)
            assert not caught.stop.is_set()

    asyncio.run(test())


def test_on_another_thread_nothing_is_caught() -> None:
    found: list[object] = []

    async def test() -> None:
        with stop_signals() as caught:
            found.append(caught.stop.is_set())

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: asyncio.run(test()))
    thread.start()
    thread.join()
    assert found == [False]
    assert signal.getsignal(signal.SIGTERM) is before
