"""CompilePool: who waits for whom, what is refused, and what becomes of work without an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo.errors import InvalidRequestError, OverloadedError, ShuttingDownError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.server.errors import to_api_error
from octavo.structured import ConstraintCompiler, compile_pool
from octavo.structured.compile_pool import CompilePool, is_compiling
from support.grammars import ByteTokenizer


class Held:
    """A pool whose workers are held until go() is called."""

    def __init__(self, pool: CompilePool) -> None:
        self.pool, self.order = pool, list[int]()
        self._go, self._begun = threading.Event(), threading.Semaphore(0)

    def go(self) -> None:
        self._go.set()

    def hold(self) -> None:
        self._begun.release()
        assert self._go.wait(60)

    def start(self, size: int) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.pool.run(size, lambda: self.order.append(size)))

    async def occupy(self, count: int = compile_pool.WORKERS) -> list[asyncio.Future[None]]:
        work = [asyncio.ensure_future(self.pool.run(0, self.hold)) for _ in range(count)]
        for _ in work:
            await asyncio.to_thread(self._begun.acquire)
        return work


def run(test: Callable[[Held], Awaitable[None]]) -> None:
    held = Held(CompilePool("grammars", "structured_outputs"))

    async def whole() -> None:
        try:
            await test(held)
        finally:
            held.go()
            held.pool.close()

    asyncio.run(whole())


def test_small_work_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "WORKERS", 1)

    async def test(held: Held) -> None:
        first = await held.occupy(1)
        waiting = [held.start(size) for size in (30, 10, 20)]
        await asyncio.sleep(0)
        held.go()
        await asyncio.gather(*first, *waiting)
        assert held.order == [10, 20, 30]

    run(test)


def test_where_the_queue_is_full_the_largest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "MAX_PENDING", 2)

    async def test(held: Held) -> None:
        first = await held.occupy()
        small, large, middle, largest = (held.start(size) for size in (10, 30, 20, 40))
        for refused in (large, largest):
            with pytest.raises(OverloadedError, match="try again later"):
                await refused
        assert not small.done()
        held.go()
        await asyncio.gather(*first, small, middle)

    run(test)


def test_time_in_the_queue_is_not_the_works_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits too long meets an overload, and is not told to simplify anything."""
    monkeypatch.setattr(compile_pool, "QUEUE_S", 0.01)

    async def test(held: Held) -> None:
        first = await held.occupy()
        with pytest.raises(OverloadedError):
            await held.start(1)
        held.go()
        await asyncio.gather(*first)

    run(test)


def test_work_without_an_end_is_given_up_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "TIMEOUT_S", 0.2)

    async def test(held: Held) -> None:
        for stuck in await held.occupy(compile_pool.MAX_ABANDONED):
            with pytest.raises(InvalidRequestError, match="to compile: simplify it"):
                await stuck
        with pytest.raises(OverloadedError):
            await held.start(1)
        assert is_compiling()
        held.go()
        while is_compiling():
            await asyncio.sleep(0.01)
        monkeypatch.setattr(compile_pool, "TIMEOUT_S", 60.0)
        await held.start(2)
        assert held.order == [2]

    run(test)


def test_who_leaves_takes_along_what_has_not_begun() -> None:
    async def test(held: Held) -> None:
        first = await held.occupy()
        gone, stays = held.start(1), held.start(2)
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        held.go()
        await asyncio.gather(*first, stays)
        assert held.order == [2]

    run(test)


def test_a_closed_pool_tells_all_at_once() -> None:
    async def test(held: Held) -> None:
        work = [*await held.occupy(), held.start(1)]
        await asyncio.sleep(0)
        held.pool.close()
        for each in (*work, held.start(1)):
            with pytest.raises(ShuttingDownError) as error:
                await each
            assert to_api_error(error.value).status == 503
        assert is_compiling()

    run(test)


def test_what_is_known_and_bad_words_wait_for_nobody() -> None:
    make = ConstraintCompiler(ByteTokenizer())
    known = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]))
    words = SamplingParams(bad_words=["x"])
    kept = make.compile(known).constraints

    async def test() -> None:
        held = Held(make._grammars)
        first: list[Any] = await held.occupy()
        assert (await make.compile_async(known)).constraints == kept
        assert len((await make.compile_async(words)).constraints) == 1
        held.go()
        await asyncio.gather(*first)
        make.close()

    asyncio.run(test())
