"""AsyncEngine where something fails: a request, a step, the thread, a reader, a caller that goes away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.engine.core import EngineCore
from octavo.engine.output import Completion, Outputs, TextStream
from octavo.engine.request import EngineRequest, RequestUpdate
from octavo.engine.snapshot import snapshot_of
from octavo.engine.step_plan import NewRow
from octavo.engine.watchdog import DEAD
from octavo.errors import EngineDeadError, RequestFailedError
from support.async_harness import FREE, House, expected, house, run


def test_a_failed_request_raises_and_the_others_go_on() -> None:
    async def scenario() -> None:
        async with house() as h:

            def fail(new: NewRow) -> str | None:
                return "logits are not finite" if (new.request_id, new.sample_index) == ("bad", 1) else None

            h.executor.fail_row = fail
            bad, good = h.begin("bad", [1, 2], FREE.replace(n=2)), h.begin("good", [3, 4])
            with pytest.raises(RequestFailedError, match="logits are not finite"):
                await bad
            assert (await good)[-1].outputs[0].token_ids == expected([3, 4])
            assert h.engine.healthy

    run(scenario)


def test_if_the_thread_dies_everybody_hears_of_it() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            waiting = h.begin("waiting", [9], FREE)
            await h.executor.begun()
            tasks = [h.begin(f"r{i}", [i + 1]) for i in range(4)]
            await asyncio.sleep(0)

            def die(*args: Any) -> Any:
                raise SystemError("out of luck")

            h.core.scheduler.update = die  # type: ignore[method-assign]
            h.executor.open()
            for task in [waiting, *tasks]:
                with pytest.raises(EngineDeadError, match=f"^{DEAD}$") as caught:
                    await task
                assert isinstance(caught.value.__cause__, SystemError)
            assert not h.engine.healthy
            assert h.engine.failure == "the engine thread died: SystemError: out of luck"
            with pytest.raises(EngineDeadError, match=f"^{DEAD}$"):
                await h.collect("late", [1])
            with pytest.raises(EngineDeadError):
                await h.engine.call(EngineCore.reset_prefix_cache)
            h.core.scheduler.update = lambda *args: []  # type: ignore[method-assign]

    run(scenario)


def test_a_broken_executor_kills_the_engine_with_its_reason() -> None:
    async def scenario() -> None:
        async with house() as h:
            h.executor.fail_step = lambda plan: RuntimeError("no device")
            with pytest.raises(EngineDeadError, match=f"^{DEAD}$"):
                await h.collect("last", [1])
            assert not h.engine.healthy
            assert "steps in a row failed" in str(h.engine.failure)
            assert "RuntimeError: no device" in str(h.engine.failure)

    run(scenario)


@pytest.mark.parametrize("ending", ["a step", "a stop"])
def test_a_call_that_is_cancelled_is_not_made_and_hurts_nobody(ending: str) -> None:
    """Its caller is gone when the engine thread comes to it, after a step or where it stops."""

    async def scenario() -> None:
        async with house(gated=True) as h:
            waiting = h.begin("r", [1, 2])
            await h.executor.begun()
            made: list[EngineCore] = []
            call = asyncio.create_task(h.engine.call(made.append))
            await h.queued()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            if ending == "a stop":
                stopping = asyncio.create_task(asyncio.to_thread(h.engine.stop))
                while not h.engine._stopping:
                    await asyncio.sleep(0)
                h.executor.open()
                await stopping
                with pytest.raises(EngineDeadError, match="the engine was stopped"):
                    await waiting
            else:
                h.executor.open()
                assert (await waiting)[-1].outputs[0].token_ids == expected([1, 2])
                assert await h.engine.call(lambda core: core is h.core)
                assert h.engine.healthy
            assert not made

    run(scenario)


def test_a_call_behind_what_kills_the_thread_hears_of_it() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            waiting = h.begin("r", [1, 2])
            await h.executor.begun()

            def die(*args: Any) -> Any:
                raise SystemError("out of luck")

            h.core.abort = die  # type: ignore[method-assign]
            await h.engine.abort("r")
            call = asyncio.create_task(h.engine.call(snapshot_of))
            await h.queued(2)
            h.executor.open()
            for task in (waiting, call):
                with pytest.raises(EngineDeadError, match=f"^{DEAD}$"):
                    await task
        del h.core.abort  # type: ignore[method-assign]

    run(scenario)


class Failing(TextStream):
    """Raises where it is told to, whatever it is told there."""

    def __init__(self, request: EngineRequest, where: str) -> None:
        super().__init__(request, {0: Completion(0, FREE, None, lambda token: None)}, lambda token: None)
        self.where = where
        self.heard: list[str] = []

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if what in self.where.split("+"):
            raise KeyError(f"{what} of a reader's own")

    def begin(self, seed: int) -> None:
        self._hear("begin")

    def take(self, update: RequestUpdate) -> bool:
        self._hear("take")
        return super().take(update)

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self._hear("fail")


@pytest.mark.parametrize("where", ["begin", "take", "begin+fail", "take+fail"])
def test_a_reader_that_fails_takes_nobody_with_it(where: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with house() as h:
            reader = Failing(EngineRequest("bad", [3], FREE), where)
            bad = Outputs(h.engine, reader)
            good = h.begin("good", [1, 2])  # whose first news come with those of the bad one
            with pytest.raises(KeyError, match="of a reader's own"):
                await anext(bad)
            await bad.aclose()
            assert (await good)[-1].outputs[0].token_ids == expected([1, 2])
            assert reader.heard.count("fail") == 1
            assert reader.heard[-1] == "fail", "there is no more news"

    run(scenario)
    assert ("the reader of request bad failed" in caplog.text) is ("fail" in where)


@pytest.mark.parametrize("refused", [False, True])
def test_a_reader_that_fails_at_a_refusal_or_a_death_takes_nobody_with_it(refused: bool) -> None:
    """As a router's may, which leaves and asks elsewhere."""

    class Leaving(Failing):
        def fail(self, error: Exception) -> None:
            h.engine.leave(self.request.request_id, self)
            super().fail(error)

    async def scenario() -> None:
        async with house(gated=True) as made:
            nonlocal h
            h = made

            def die(*args: Any) -> Any:
                raise SystemError("out of luck")

            if refused:  # before the engine's thread has anything to add
                h.core.add = die  # type: ignore[method-assign]
            first = Outputs(h.engine, Leaving(EngineRequest("first", [3], FREE), "fail"))
            if not refused:
                await h.executor.begun()
            waiting = [h.begin(f"r{i}", [i + 1]) for i in range(3)]
            await asyncio.sleep(0)
            if not refused:
                h.core.scheduler.update = die  # type: ignore[method-assign]
            h.executor.open()
            for task in waiting:
                with pytest.raises(Exception, match="out of luck" if refused else DEAD):
                    await task
            with pytest.raises(Exception, match="out of luck" if refused else DEAD):
                await anext(first)
            if not refused:
                h.core.scheduler.update = lambda *args: []  # type: ignore[method-assign]

    h: House
    run(scenario)
