"""The real engine without a model: plans are not executed but timed by a cost model.

    trace -> EngineCore (scheduler, pages, prefix cache: all real) -> SimulatedExecutor
                          ^ reads the time from                        | moves the time on
                          `------------- Clock <------------------------'

Nothing here depends on the machine or on the hour: the same trace gives the same result.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.bench.trace import TraceRequest, prompt_ids
from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.engine.cost import CostModel
from octavo.engine.request import EngineRequest, RequestUpdate
from octavo.engine.scheduler import Scheduler
from octavo.engine.step_plan import StepPlan, StepResult
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.params import RequestMetrics, SampledToken, SamplingParams

_TOKEN: tuple[SampledToken, ...] = (SampledToken(1),)


class Clock:
    """Seconds since the beginning, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class _Timed:
    """A step that will have ended at a certain time."""

    step: StepResult
    end: float
    clock: Clock

    def result(self) -> StepResult:
        self.clock.now = max(self.clock.now, self.end)
        return self.step


class SimulatedExecutor:
    """An engine.step_plan.Executor that draws token 1 for everybody and takes the time the model says.

    Attributes:
        steps, tokens: how many were computed; busy_s: how long that took.
    """

    def __init__(self, cost: CostModel, clock: Clock) -> None:
        self._cost, self._clock = cost, clock
        self._free_at = 0.0
        self.steps = self.tokens = 0
        self.busy_s = 0.0

    def submit(self, plan: StepPlan) -> _Timed:
        seconds = self._cost.seconds(plan)
        self._free_at = max(self._free_at, self._clock.now) + seconds
        self.busy_s += seconds
        self.steps += 1
        self.tokens += plan.num_tokens
        drawn = {step.row: _TOKEN for step in plan.steps if step.sample}
        return _Timed(StepResult(plan.step_id, drawn, {}), self._free_at, self._clock)


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of some times, in milliseconds."""

    p50: float
    p90: float
    p99: float
    most: float

    @staticmethod
    def of(seconds: Iterable[float]) -> Spread:
        """Nearest rank, as in stats.percentile; zeros where there is nothing."""
        values = np.sort(np.fromiter(seconds, np.float64)) * 1e3
        if not len(values):
            return Spread(0.0, 0.0, 0.0, 0.0)
        ranks = np.ceil(np.array([0.5, 0.9, 0.99, 1.0]) * len(values)).astype(int) - 1
        return Spread(*(round(float(value), 3) for value in values[ranks]))


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a trace meets. Rates are a second.

    Attributes:
        requests, refused: of the trace; refused are those the queue had no room for (429), and those
            longer than the engine's context.
        seconds: from the first arrival to the last end; busy: share of it in which a step ran.
        ttft: from arrival to the first token; itl: between two tokens of a request; wait: from
            arrival to the first step; latency: to the last token.
        overhead: computed tokens over those that had to be (1.0: no prompt or answer was computed
            twice, cached ones counted as computed).
        hit_rate: share of the prompt tokens found in the prefix cache.
        queue: most requests that waited at once; usage: most of the pool held by running ones, 0..1.
    """

    requests: int
    refused: int
    seconds: float
    busy: float
    output_rate: float
    request_rate: float
    ttft: Spread
    itl: Spread
    wait: Spread
    latency: Spread
    steps: int
    preemptions: int
    overhead: float
    hit_rate: float
    queue: int
    usage: float


class Simulation:
    """One engine without a model, and what its requests saw.

    Args:
        scheduler: another one than Scheduler(config), to compare with.
        steps_in_flight: as EngineCore's.

    Attributes:
        metrics: each request's times, by its number in the trace; None: refused.
        watch: called after each step, if set, with the seconds since the one before.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cost: CostModel,
        *,
        scheduler: Scheduler | None = None,
        steps_in_flight: int = 1,
        watch: Callable[[EngineCore, float], None] | None = None,
    ) -> None:
        self.clock = Clock()
        self.executor = SimulatedExecutor(cost, self.clock)
        self.core = EngineCore(
            Admission(config),
            self.executor,
            clock=self.clock,
            steps_in_flight=steps_in_flight,
            scheduler=scheduler,
        )
        self.metrics: list[RequestMetrics | None] = []
        self.watch = watch
        self._params: dict[int, SamplingParams] = {}
        self._last: dict[str, float] = {}
        self._gaps = array("d")
        self._needed = self._generated = 0
        self._queue = 0
        self._usage = 0.0

    def run(self, trace: Sequence[TraceRequest]) -> Simulated:
        """Replay a trace, in order of arrival, to its end."""
        core, clock = self.core, self.clock
        begin = clock.now = trace[0].arrival_s if trace else 0.0
        place = 0
        while place < len(trace) or core.has_unfinished():
            while place < len(trace) and trace[place].arrival_s <= clock.now:
                self._arrive(trace[place], place)
                place += 1
            if not core.has_unfinished():
                if place < len(trace):
                    clock.now = max(clock.now, trace[place].arrival_s)
                continue
            before = clock.now
            self._take(core.step())
            self._queue = max(self._queue, core.num_waiting)
            if self.watch is not None:
                self.watch(core, clock.now - before)
        return self._result(clock.now - begin)

    def _arrive(self, request: TraceRequest, number: int) -> None:
        params = self._params.get(request.output_tokens)
        if params is None:
            params = SamplingParams(
                temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True, seed=0
            )
            self._params[request.output_tokens] = params
        try:
            prompt = list(prompt_ids(request, number))
            asked = EngineRequest(str(number), prompt, params, request.priority)
            self.core.check(asked)
            self.core.add(asked, request.arrival_s)
        except (OverloadedError, InvalidRequestError):
            self.metrics.append(None)
            return
        self.metrics.append(RequestMetrics(request.arrival_s))

    def _take(self, updates: Sequence[RequestUpdate]) -> None:
        now, last, gaps = self.clock.now, self._last, self._gaps
        for update in updates:
            name = update.request_id
            if update.tokens:
                before = last.get(name)
                if before is not None:
                    gaps.append(now - before)
                last[name] = now
                self._generated += len(update.tokens)
            if update.finish_reason is not None:
                last.pop(name, None)
                self.metrics[int(name)] = update.metrics
        self._usage = max(self._usage, self.core.scheduler.kv.usage())

    def _result(self, seconds: float) -> Simulated:
        done = [m for m in self.metrics if m is not None]
        scheduler, executor = self.core.scheduler, self.executor
        cache = scheduler.kv.cache
        # The last token of a request is drawn but never computed.
        needed = scheduler.num_prompt_tokens + scheduler.num_generated_tokens - len(done)
        return Simulated(
            requests=len(self.metrics),
            refused=len(self.metrics) - len(done),
            seconds=seconds,
            busy=executor.busy_s / seconds if seconds else 0.0,
            output_rate=self._generated / seconds if seconds else 0.0,
            request_rate=len(done) / seconds if seconds else 0.0,
            ttft=Spread.of((m.first_token_time or 0.0) - m.arrival_time for m in done),
            itl=Spread.of(self._gaps),
            wait=Spread.of((m.first_scheduled_time or 0.0) - m.arrival_time for m in done),
            latency=Spread.of((m.last_token_time or 0.0) - m.arrival_time for m in done),
            steps=executor.steps,
            preemptions=scheduler.num_preemptions,
            overhead=(executor.tokens + cache.hit_tokens) / needed if needed else 0.0,
            hit_rate=cache.hit_tokens / cache.query_tokens if cache.query_tokens else 0.0,
            queue=self._queue,
            usage=self._usage,
        )


def simulate(config: SchedulerConfig, cost: CostModel, trace: Sequence[TraceRequest]) -> Simulated:
    """Replay a trace on a fresh engine."""
    return Simulation(config, cost).run(trace)
