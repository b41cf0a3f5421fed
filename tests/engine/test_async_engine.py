"""AsyncEngine: many callers, disconnects, slow readers, overload, ends. No test waits for the clock:
a gate in the executor decides when a step may go on."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest

from octavo.engine.core import EngineCore
from octavo.engine.snapshot import snapshot_of
from octavo.errors import EngineDeadError, InvalidRequestError, OverloadedError
from octavo.params import RequestOutput, RequestOutputKind, SamplingParams
from support.async_harness import FREE, House, expected, house, run


@pytest.mark.parametrize("depth", [1, 2])
def test_many_callers_each_get_their_own(depth: int) -> None:
    async def scenario() -> None:
        async with house(depth=depth) as h:

            async def call(i: int) -> None:
                tokens = [1 + i % 3] * (i % 9 + 1)
                params = SamplingParams(
                    n=1 + i % 2, max_tokens=12, output_kind=list(RequestOutputKind)[i % 3], ignore_eos=True
                )
                while True:
                    try:
                        outputs = await h.collect(f"r{i}", tokens, params)
                        break
                    except OverloadedError:
                        await asyncio.sleep(0)
                seed = outputs[-1].seed
                for index in range(params.n):
                    mine = [c for o in outputs for c in o.outputs if c.index == index]
                    delta = params.output_kind is RequestOutputKind.DELTA
                    ids = [i for c in mine for i in c.token_ids] if delta else mine[-1].token_ids
                    assert ids == expected(tokens, params, seed, index)
                    assert ("".join(c.text for c in mine) if delta else mine[-1].text) == "".join(
                        chr(97 + i) for i in ids
                    )

            await asyncio.gather(*[call(i) for i in range(24)])
            stats = h.engine.stats()
            assert (stats.running, stats.waiting, stats.generated_tokens) == (0, 0, 36 * 12)

    run(scenario)


def test_tokens_stream_step_by_step() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            stream = h.stream("r", [1, 2], FREE)
            first = asyncio.ensure_future(anext(stream))
            await h.executor.begun()
            assert not first.done()
            await h.executor.go()
            assert (await first).outputs[0].token_ids == expected([1, 2])[:1]
            second = asyncio.ensure_future(anext(stream))
            await h.executor.go()
            assert (await second).outputs[0].token_ids == expected([1, 2])[:2]
            await stream.aclose()

    run(scenario)


@pytest.mark.parametrize("how", ["cancel", "close", "abort"])
def test_who_leaves_is_aborted_within_a_step(how: str) -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            ready = asyncio.Event()
            outputs: list[RequestOutput] = []

            async def call() -> None:
                async with aclosing(h.stream("r", [1, 2], FREE)) as stream:
                    async for output in stream:
                        outputs.append(output)
                        ready.set()
                        if how == "close":
                            return

            other = h.begin("other", [5, 6])
            await h.executor.begun()
            task = asyncio.create_task(call())
            await h.queued()
            await h.executor.go(2)
            await ready.wait()
            if how == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif how == "close":
                await task
            else:
                await h.engine.abort("r")
            steps = len(h.executor.plans)
            h.executor.open()
            assert (await other)[-1].outputs[0].token_ids == expected([5, 6])
            rows = [len(plan.steps) for plan in h.executor.plans]
            assert rows[:2] == [1, 2]
            # the step that was in progress when the caller left was the last one with its row
            assert set(rows[steps + 1 :]) == {1}
            if how == "abort":
                await task
                assert outputs[-1].outputs[0].finish_reason == "abort"
                assert outputs[-1].finished

    run(scenario)


def test_a_slow_reader_gets_merged_outputs() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            stream = h.stream("slow", [1, 2], FREE.replace(output_kind=RequestOutputKind.DELTA))
            begun = asyncio.ensure_future(anext(stream))
            await h.executor.begun()
            await h.executor.go()
            first = await begun
            h.executor.open()
            await h.collect("other", [3, 4], FREE.replace(max_tokens=30))  # meanwhile slow is ready
            rest = [output async for output in stream]
            assert len(rest) == 1
            ids = first.outputs[0].token_ids + rest[0].outputs[0].token_ids
            assert ids == expected([1, 2])

    run(scenario)


def test_the_loop_is_woken_at_most_once_a_step() -> None:
    async def scenario() -> None:
        async with house() as h:
            loop, calls = asyncio.get_running_loop(), []
            original = loop.call_soon_threadsafe

            def counting(callback: Any, *args: Any, **kwargs: Any) -> Any:
                if callback == h.engine._deliver:
                    calls.append(callback)
                return original(callback, *args, **kwargs)

            loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
            await asyncio.gather(*[h.collect(f"r{i}", [i + 1] * 5) for i in range(4)])
            assert 0 < len(calls) <= len(h.executor.plans) + 4

    run(scenario)


def test_a_stop_string_ends_the_request_in_the_core_too() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            ids = expected([1, 2])
            stop = "".join(chr(97 + i) for i in ids[1:3])
            task = h.begin("r", [1, 2], FREE.replace(stop=[stop]))
            await h.executor.begun()
            await h.executor.go(2)
            h.executor.gate.release()  # type: ignore[union-attr]
            (completion,) = (await task)[-1].outputs
            assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
            assert completion.token_ids == ids[:3], "usage ends at the token that completed it"
            h.executor.open()
            await h.collect("next", [9])
            surplus = sum(len(plan.steps) for plan in h.executor.plans) - 3 - 12
            assert surplus in (0, 1), "at most the step that was in progress"

    run(scenario)


def test_bad_requests_fail_before_the_first_output() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            with pytest.raises(InvalidRequestError, match="the prompt is empty"):
                await h.collect("r", [])
            with pytest.raises(InvalidRequestError, match="token id 99"):
                await h.collect("r", [99])
            task = h.begin("r", [1])
            await h.executor.begun()
            with pytest.raises(InvalidRequestError, match="request_id 'r' is in use"):
                await h.collect("r", [1])
            h.executor.open()
            await task
            assert (await h.collect("r", [1]))[-1].finished

    run(scenario)


def test_overload_is_refused_at_once_even_while_a_step_runs() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            tasks = [h.begin("first", [1, 2])]
            await h.executor.begun()
            tasks += [h.begin(f"r{i}", [i + 1]) for i in range(4)]
            await asyncio.sleep(0)
            assert h.engine.stats().waiting == 4
            with pytest.raises(OverloadedError, match="4 requests are waiting already"):
                await h.collect("fifth", [1])
            h.executor.open()
            assert all(outputs[-1].finished for outputs in await asyncio.gather(*tasks))

    run(scenario)


def test_what_only_the_core_can_refuse_reaches_the_caller() -> None:
    async def scenario() -> None:
        async with house() as h:

            def refuse(*args: Any, **kwargs: Any) -> int:
                raise OverloadedError("no")

            h.core.add = refuse  # type: ignore[method-assign]
            with pytest.raises(OverloadedError, match="no"):
                await h.collect("r", [1])

    run(scenario)


def test_drain_lets_the_running_end_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        h = House(gated=True)
        h.engine.start()
        task = h.begin("r", [1, 2])
        await h.executor.begun()
        draining = asyncio.create_task(h.engine.drain(30.0))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="shutting down"):
            await h.collect("late", [1])
        h.executor.open()
        await draining
        assert (await task)[-1].outputs[0].token_ids == expected([1, 2])
        assert not h.engine.healthy

    run(scenario)


def test_drain_aborts_what_takes_too_long() -> None:
    async def scenario() -> None:
        h = House(gated=True)
        h.engine.start()
        task = h.begin("r", [1, 2])
        await h.executor.begun()
        await h.executor.go()
        draining = asyncio.create_task(h.engine.drain(0.0))
        await h.queued()
        h.executor.open()
        await draining
        last = (await task)[-1]
        assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")

    run(scenario)


def test_stop_does_not_leave_callers_waiting() -> None:
    async def scenario() -> None:
        h = House(gated=True)
        h.engine.start()
        task = h.begin("r", [1, 2])
        await h.executor.begun()
        stopping = asyncio.create_task(asyncio.to_thread(h.engine.stop))
        while not h.engine._stopping:
            await asyncio.sleep(0)
        h.executor.open()
        await stopping
        with pytest.raises(EngineDeadError, match="the engine was stopped"):
            await task
        with pytest.raises(EngineDeadError, match="the engine was stopped"):
            await h.collect("late", [1])
        h.engine.stop()

    run(scenario)


def test_an_engine_that_was_not_started_says_so() -> None:
    async def scenario() -> None:
        h = House()
        assert not h.engine.healthy
        with pytest.raises(EngineDeadError, match="the engine is not running"):
            await h.collect("r", [1])
        with pytest.raises(EngineDeadError, match="the engine is not running"):
            await h.engine.call(snapshot_of)
        h.engine.stop()

    run(scenario)


def test_healthy_means_moving() -> None:
    now = [0.0]

    async def scenario() -> None:
        async with house(gated=True, stall_s=10.0, clock=lambda: now[0]) as h:
            now[0] = 100.0
            assert h.engine.healthy, "idle is healthy, however long"
            task = h.begin("r", [1, 2])
            await h.executor.begun()
            now[0] = 109.0
            assert h.engine.healthy
            now[0] = 111.0
            assert not h.engine.healthy
            await h.executor.go()
            assert h.engine.healthy
            h.executor.open()
            await task

    run(scenario)


def test_an_idle_engine_sleeps() -> None:
    async def scenario() -> None:
        async with house() as h:
            await h.collect("r", [1])
            turns = []
            turn = h.engine._turn

            def counting() -> bool:
                turns.append(1)
                return turn()

            h.engine._turn = counting  # type: ignore[method-assign]
            await h.collect("s", [1], FREE.replace(max_tokens=2))
            while h.engine._busy:
                await asyncio.sleep(0)
            asleep = len(turns)
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(turns) == asleep

    run(scenario)


def test_the_prefix_cache_can_be_reset_from_outside() -> None:
    async def scenario() -> None:
        async with house() as h:
            prompt = list(range(1, 12))
            hits = []
            for name in "ab":
                hits.append((await h.collect(name, prompt))[-1].num_cached_tokens)
            assert await h.engine.call(EngineCore.reset_prefix_cache)
            hits.append((await h.collect("c", prompt))[-1].num_cached_tokens)
            assert hits == [0, 8, 0]

    run(scenario)


def test_any_call_is_made_on_the_engine_thread_between_two_steps() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            running = h.begin("r", [1, 2])
            await h.executor.begun()
            asked = asyncio.create_task(h.engine.call(snapshot_of))
            await h.queued()
            await h.executor.go()
            seen = await asked
            assert seen.free + seen.cached + seen.used + seen.shared == 64
            assert [(row.request_id, row.num_tokens, row.in_last_step) for row in seen.rows] == [("r", 3, 2)]
            h.executor.open()
            names = [await h.engine.call(lambda core: threading.current_thread().name) for _ in range(3)]
            assert names == ["octavo-engine"] * 3

            def wrong(core: EngineCore) -> None:
                raise KeyError("x")

            with pytest.raises(KeyError):
                await h.engine.call(wrong)
            assert (await running)[-1].finished

    run(scenario)


def test_a_second_event_loop_may_follow_the_first() -> None:
    h = House(gated=True)
    h.engine.start()

    loop = asyncio.new_event_loop()
    task: list[Any] = []

    async def begin() -> None:
        task.append(h.begin("left", [1, 2]))
        await h.executor.begun()

    loop.run_until_complete(begin())
    loop.close()  # without the clean-up of asyncio.run: the request is still there
    task[0]._log_destroy_pending = False
    h.executor.open()

    async def again() -> None:
        assert (await h.collect("r", [1, 2]))[-1].outputs[0].token_ids == expected([1, 2])
        while h.engine._open:
            await asyncio.sleep(0)
        assert (await h.collect("left", [1, 2]))[-1].finished
        await h.engine.drain(30.0)

    run(again)
    h.core.check_integrity()
    assert not h.core.has_unfinished()


def test_two_event_loops_at_once_are_refused() -> None:
    async def scenario() -> None:
        async with house(gated=True) as h:
            task = h.begin("r", [1, 2])
            await h.executor.begun()
            with pytest.raises(RuntimeError, match="one event loop at a time"):
                await asyncio.to_thread(asyncio.run, h.collect("s", [1]))
            h.executor.open()
            await task

    run(scenario)
