"""A step that does not end: what waits for it is told, whoever runs the engine too, and the end comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from octavo.engine import async_engine, watchdog
from octavo.engine.snapshot import snapshot_of
from octavo.engine.watchdog import EngineStalledError, Watchdog
from support.async_harness import FREE, House, expected, run

STALLED = str(EngineStalledError())


@asynccontextmanager
async def hung(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """An engine whose first step has begun and does not end before the block does."""
    monkeypatch.setattr(watchdog, "LOOK_S", 0.01)
    monkeypatch.setattr(async_engine, "ABORT_GRACE_S", 0.05)
    h = House(gated=True)
    h.engine.start()
    try:
        yield h
    finally:
        h.executor.open()
        await asyncio.to_thread(h.engine._thread.join, 30)
        assert not h.engine._thread.is_alive()
        h.core.check_integrity()


def test_a_step_that_does_not_end_ends_what_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with hung(monkeypatch) as h:
            tasks = [h.begin(f"r{number}", [number + 1]) for number in range(4)]
            await h.executor.begun()
            call = asyncio.create_task(h.engine.call(snapshot_of))
            await h.queued()
            h.engine.watch(0.05)
            for task in (*tasks, call):
                with pytest.raises(EngineStalledError, match=f"^{STALLED}$"):
                    await task
            with pytest.raises(EngineStalledError):
                await h.collect("late", [1])
            assert h.engine.stalled
            assert not h.engine.healthy
            assert h.engine.failure == "a step made no progress for 0.05 s"
            h.engine.stop()  # does not wait
            await h.engine.drain(10.0)  # nor does this

    run(scenario)
    assert [(r.levelno, r.message) for r in caplog.records] == [
        (logging.ERROR, "a step made no progress for 0.05 s: the engine is given up")
    ]


def test_a_drain_ends_though_a_step_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with hung(monkeypatch) as h:
            task = h.begin("r", [1, 2])
            await h.executor.begun()
            await h.engine.drain(0.0)
            with pytest.raises(EngineStalledError):
                await task
            assert h.engine.stalled
            assert h.engine._thread.is_alive()

    run(scenario)


def test_a_drain_waits_while_the_cache_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than an engine may stand still, and moves all the while."""
    monkeypatch.setattr(async_engine, "ABORT_GRACE_S", 0.05)
    h = House()

    def close(saved: Callable[[], None]) -> None:
        for _ in range(10):
            asyncio.run(asyncio.sleep(0.02))
            saved()

    monkeypatch.setattr(h.core, "close", close)

    async def scenario() -> None:
        h.engine.start()
        assert (await h.collect("r", [1, 2]))[-1].outputs[0].token_ids == expected([1, 2])
        await h.engine.drain(0.0)
        assert not h.engine.stalled
        assert h.engine.failure is None
        assert not h.engine._thread.is_alive()

    run(scenario)


def test_an_engine_that_moves_or_has_nothing_to_do_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with hung(monkeypatch) as h:
            h.engine.watch(0.2)
            await asyncio.sleep(0.4)  # idle
            task = h.begin("r", [1, 2], FREE)
            await h.executor.begun()
            for _ in range(8):
                await asyncio.sleep(0.05)
                await h.executor.go()
            assert not h.engine.stalled
            h.executor.open()
            assert (await task)[-1].outputs[0].token_ids == expected([1, 2])
            await h.engine.drain(1.0)

    run(scenario)


@pytest.mark.parametrize(
    ("moves", "still"),
    [
        ([0, 0, 0], [False, False, False]),
        ([1, 1, 1], [False, True, True]),
        ([1, 2, 3], [False, False, False]),
        ([1, 1, 2, 2, 0, 2], [False, True, False, True, False, False]),
    ],
)
def test_it_counts_looks_and_asks_no_clock(moves: list[int], still: list[bool]) -> None:
    left = iter(moves)
    watched = Watchdog(lambda: next(left))
    assert [watched.is_still() for _ in moves] == still
