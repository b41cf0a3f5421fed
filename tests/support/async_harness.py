"""An AsyncEngine over the toy executor, with a gate that decides when a step may go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.core import EngineCore
from octavo.engine.output import OutputProcessor, Outputs
from octavo.engine.request import EngineRequest
from octavo.engine.retries import StepRetries
from octavo.engine.step_plan import StepPlan
from octavo.params import RequestOutput, SamplingParams
from octavo.tokenizer.stop import StopStrings
from support.toy_executor import EOS, Done, Toy, ToyExecutor, alone

FREE = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.0)
LIMIT = 64


class Letters:
    def __init__(self, prompt: Any, params: SamplingParams) -> None: ...

    def push(self, token_id: int) -> str:
        return chr(97 + token_id)

    def flush(self) -> str:
        return ""


class GatedExecutor(ToyExecutor):
    """Waits in each step until it may go on. `entered` counts the steps that have begun."""

    def __init__(self, *, gated: bool) -> None:
        super().__init__(64, 4)
        self.gate = threading.Semaphore(0) if gated else None
        self.entered = threading.Semaphore(0)

    def submit(self, plan: StepPlan) -> Done:
        self.entered.release()
        if self.gate is not None:
            self.gate.acquire()
        return super().submit(plan)

    def open(self) -> None:
        """Let everything pass from now on."""
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.release(1000)

    async def begun(self, steps: int = 1) -> None:
        """Wait until so many more steps have begun."""
        for _ in range(steps):
            assert await asyncio.to_thread(self.entered.acquire, timeout=30), "no step begins"

    async def go(self, steps: int = 1) -> None:
        """Let steps end, and wait until the next one has begun."""
        for _ in range(steps):
            assert self.gate is not None
            self.gate.release()
            await self.begun()


class House:
    """An engine with its parts in reach."""

    def __init__(self, *, gated: bool = False, depth: int = 1, **engine: Any) -> None:
        config = SchedulerConfig(
            num_pages=64,
            page_size=4,
            max_model_len=LIMIT,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_waiting=4,
        )
        self.executor = GatedExecutor(gated=gated)
        self.core = EngineCore(Admission(config, frozenset({EOS}), 64), self.executor, steps_in_flight=depth)
        self.core.recovery = StepRetries(self.core, self.executor)
        self.executor.references = self.core.scheduler.kv.pool.references
        self.texts = OutputProcessor(Letters, lambda params: StopStrings(params.stop))
        self.engine = AsyncEngine(self.core, **engine)

    async def collect(
        self, name: str, tokens: list[int], params: SamplingParams = FREE
    ) -> list[RequestOutput]:
        async with aclosing(self.stream(name, tokens, params)) as stream:
            return [output async for output in stream]

    def stream(self, name: str, tokens: list[int], params: SamplingParams = FREE) -> Outputs:
        return Outputs(self.engine, self.texts.open(EngineRequest(name, tokens, params)))

    def begin(
        self, name: str, tokens: list[int], params: SamplingParams = FREE
    ) -> asyncio.Task[list[RequestOutput]]:
        return asyncio.create_task(self.collect(name, tokens, params))

    async def queued(self, commands: int = 1) -> None:
        """Wait until so many commands lie before the engine's thread."""
        while len(self.engine._inbox) < commands:
            await asyncio.sleep(0)


@asynccontextmanager
async def house(**changes: Any) -> AsyncIterator[House]:
    """A running engine; afterwards nothing may be left of any request."""
    h = House(**changes)
    h.engine.start()
    try:
        yield h
    finally:
        h.executor.open()
        await h.engine.drain(30.0)
        assert not h.engine._open
        assert not h.engine._readers
        h.core.check_integrity()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))  # type: ignore[arg-type]


def expected(tokens: list[int], params: SamplingParams = FREE, seed: int = 0, index: int = 0) -> list[int]:
    return alone(tokens, params, seed, index, LIMIT, Toy())[0]
