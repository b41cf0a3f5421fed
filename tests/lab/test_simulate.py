"""The engine without a model: times known by hand, and what holds for any trace."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from octavo.bench.trace import HASH_TOKENS, TraceRequest, poisson
from octavo.config import SchedulerConfig
from octavo.engine.admission import QueueOrder
from octavo.engine.core import EngineCore
from octavo.engine.cost import CostModel
from octavo.engine.scheduler import Scheduler
from octavo.lab.simulate import Simulated, Simulation, Spread, simulate

COST = CostModel(step_s=3e-3, token_s=5e-4, pair_s=2e-8, sample_s=1e-4)
CHAT = ((0.85, (16, 128), (4, 32)), (0.15, (64, 512), (32, 128)))


def config(**changes: object) -> SchedulerConfig:
    settings = {"num_pages": 2048, "max_num_seqs": 32, "max_num_batched_tokens": 512, "max_waiting": 10**6}
    return SchedulerConfig(**settings | changes)  # type: ignore[arg-type]


def finished(simulation: Simulation, trace: Sequence[TraceRequest]) -> Simulated:
    """Run to the end: every request has ended and nothing is held."""
    result = simulation.run(trace)
    core = simulation.core
    core.check_integrity()
    assert not core.has_unfinished()
    assert core.scheduler.kv.num_available == core.config.num_pages
    assert all(m is None or m.finished_time is not None for m in simulation.metrics)
    return result


# --- times ------------------------------------------------------------------------------------------


def test_a_lone_request_takes_what_its_steps_cost() -> None:
    cost = CostModel(step_s=1.0, token_s=0.1, pair_s=0.01, sample_s=0.001)
    result = simulate(config(max_num_batched_tokens=4), cost, [TraceRequest(5.0, 6, 3)])
    first = 1.0 + 0.4 + 0.01 * (1 + 2 + 3 + 4)
    second = 1.0 + 0.2 + 0.01 * (5 + 6) + 0.001
    third, fourth = (1.0 + 0.1 + 0.01 * n + 0.001 for n in (7, 8))
    assert result.ttft.p50 == pytest.approx(1e3 * (first + second), abs=1e-3)
    assert result.itl.most == pytest.approx(1e3 * fourth, abs=1e-3)
    assert result.seconds == pytest.approx(first + second + third + fourth)
    assert (result.steps, result.busy, result.wait.most) == (4, pytest.approx(1.0), 0.0)
    assert result.output_rate == pytest.approx(3 / result.seconds)
    assert result.overhead == 1.0


def test_idle_time_passes_between_arrivals() -> None:
    result = simulate(config(), COST, [TraceRequest(0.0, 4, 1), TraceRequest(60.0, 4, 1)])
    assert result.seconds > 60.0
    assert result.busy < 0.01
    assert result.ttft.most < 10.0


def test_two_steps_in_flight_take_the_same_time() -> None:
    trace = poisson(60, 20.0, CHAT)
    one = finished(Simulation(config(), COST), trace)
    two = finished(Simulation(config(), COST, steps_in_flight=2), trace)
    assert two.output_rate == pytest.approx(one.output_rate, rel=0.05)


def test_the_same_trace_gives_the_same_result() -> None:
    trace = poisson(100, 10.0, CHAT, seed=3)
    assert simulate(config(), COST, trace) == simulate(config(), COST, trace)


def test_percentiles_are_nearest_ranks() -> None:
    assert Spread.of(n / 1e3 for n in range(1, 101)) == Spread(50.0, 90.0, 99.0, 100.0)
    assert Spread.of([]) == Spread(0.0, 0.0, 0.0, 0.0)


def test_prompts_share_the_blocks_that_a_trace_names() -> None:
    trace = [
        TraceRequest(0.0, 2 * HASH_TOKENS + 9, 1, blocks=(1, 2, 3)),
        TraceRequest(60.0, 2 * HASH_TOKENS + 9, 1, blocks=(1, 2, 4)),
        TraceRequest(120.0, 2 * HASH_TOKENS + 9, 1, blocks=(5, 2, 3)),
    ]
    result = simulate(config(), COST, trace)
    assert result.hit_rate == pytest.approx(2 * HASH_TOKENS / (3 * (2 * HASH_TOKENS + 9)))
    assert result.overhead == 1.0


def test_what_is_too_long_or_too_many_is_refused() -> None:
    trace = [TraceRequest(0.0, 9000, 1), *[TraceRequest(0.0, 8, 4)] * 10]
    result = finished(Simulation(config(max_waiting=4), COST), trace)
    assert (result.requests, result.refused) == (11, 1 + 6)


# --- nobody starves ---------------------------------------------------------------------------------


def test_a_flood_of_short_requests_does_not_hold_a_long_one_up() -> None:
    """It enters in its turn, and once it runs it is the oldest: it ends as if it were nearly alone."""
    flood = poisson(3000, 120.0, [(1.0, (8, 32), (1, 8))])  # more than the engine can serve
    long = TraceRequest(flood[1000].arrival_s, 4000, 64)
    trace = sorted([*flood, long], key=lambda request: request.arrival_s)
    simulation = Simulation(config(step_target_s=0.1), COST)
    result = finished(simulation, trace)
    times = simulation.metrics[trace.index(long)]
    assert times is not None
    assert times.finished_time is not None
    assert times.first_scheduled_time is not None
    alone = simulate(config(step_target_s=0.1), COST, [long])
    assert result.wait.most > 10_000  # milliseconds: the flood itself has to wait
    assert times.first_scheduled_time - long.arrival_s < result.wait.most / 1e3 / 2
    assert times.finished_time - times.first_scheduled_time < 4 * alone.latency.most / 1e3


class EntryCounter:
    """How many entered between a request's arrival and its own entry, and how many older waited."""

    def __init__(self, core: EngineCore) -> None:
        self.waited: dict[int, int] = {}
        self.bound: dict[int, int] = {}
        self._arrived: dict[int, int] = {}
        self._entries = 0
        self._core = core
        scheduler = core.scheduler
        add, enter = scheduler.add, scheduler._enter

        def count_add(request):  # type: ignore[no-untyped-def]
            number = request.order[1]
            older = sum(r.order[1] < number for r in scheduler.waiting)
            self._arrived[number] = self._entries
            self.bound[number] = core.config.fair_share * (older + 1)
            add(request)

        def count_enter(request, step, now):  # type: ignore[no-untyped-def]
            if request.metrics.first_scheduled_time is None:
                self.waited[request.order[1]] = self._entries - self._arrived[request.order[1]]
            self._entries += 1
            enter(request, step, now)

        scheduler.add, scheduler._enter = count_add, count_enter  # type: ignore[method-assign]


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
@pytest.mark.parametrize("fair_share", [2, 16])
def test_everybody_enters_within_its_bound(policy: str, fair_share: int) -> None:
    """Urgent and cached requests in plenty, at more than the engine can serve.

    The shared prefixes are cached beforehand: who waits for one in the making is passed over.
    """
    draw = random.Random(fair_share)
    trace = [
        *(TraceRequest(0.0, 1536 + 8, 1, blocks=blocks) for blocks in ((1, 2), (7, 8, 9))),
        *_flood(draw),
    ]
    trace = [r for r in trace if not r.blocks or r.prompt_tokens > HASH_TOKENS * len(r.blocks)]
    roomy = config(num_pages=8192, scheduling_policy=policy, fair_share=fair_share)
    simulation = Simulation(roomy, COST)
    counter = EntryCounter(simulation.core)
    finished(simulation, trace)
    assert len(counter.waited) == len(trace)
    late = {n: (w, counter.bound[n]) for n, w in counter.waited.items() if w > counter.bound[n]}
    assert not late
    assert max(counter.waited.values()) > 100  # the flood was one


def _flood(draw: random.Random) -> list[TraceRequest]:
    return [
        TraceRequest(
            60 + number * 0.02,
            draw.choice((40, 600, 1200)),
            draw.randint(1, 30),
            priority=draw.choice((0, 0, 0, 0, 1, 5)),
            blocks=draw.choice(((), (1, 2), (1, 2), (7, 8, 9))),
        )
        for number in range(600)
    ]


def test_without_the_share_a_flood_starves_the_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bound is worth: the same flood without it."""

    def patient_wait() -> float:
        urgent = poisson(1500, 25.0, CHAT)
        trace = [TraceRequest(10.0, 32, 8, priority=1), *urgent]
        trace.sort(key=lambda request: request.arrival_s)
        simulation = Simulation(config(), COST)
        finished(simulation, trace)
        times = simulation.metrics[[r.priority for r in trace].index(1)]
        assert times is not None
        assert times.first_scheduled_time is not None
        return times.first_scheduled_time - 10.0

    fair = patient_wait()
    monkeypatch.setattr(QueueOrder, "_oldest", lambda self, waiting, running: iter(()))
    assert fair < 10.0
    assert patient_wait() > 30.0


# --- pages ------------------------------------------------------------------------------------------


def thrash(growth_pages: int, num_pages: int) -> Simulated:
    small = config(num_pages=num_pages, max_model_len=1024, enable_prefix_caching=False)
    simulation = Simulation(small, COST)
    simulation.core.scheduler.growth_pages = growth_pages
    return finished(simulation, poisson(300, float("inf"), [(1.0, (16, 64), (64, 256))]))


@pytest.mark.parametrize("num_pages", [64, 128, 256])
def test_a_pool_too_small_does_not_thrash(num_pages: int) -> None:
    """Preemption throws work away, but not much of it, however short the pages are.

    The reserve that newcomers leave is what holds it down: without it a third and more is computed
    in vain.
    """
    result, reckless = thrash(2, num_pages), thrash(0, num_pages)
    assert result.preemptions > 0
    assert result.overhead < 1.25
    assert reckless.overhead > 1.3
    assert result.output_rate > 1.15 * reckless.output_rate


def test_the_cache_keeps_what_preemption_would_throw_away() -> None:
    trace = poisson(300, float("inf"), [(1.0, (16, 64), (64, 256))])
    small = config(num_pages=128, max_model_len=1024)
    cached = finished(Simulation(small, COST), trace)
    assert cached.preemptions > 0
    assert cached.overhead < thrash(2, 128).overhead


def test_the_longest_prefix_first_hits_more() -> None:
    """Twelve books that do not fit into the cache together, asked about in random order."""
    draw = random.Random(5)
    trace = []
    for number in range(400):
        book = draw.randrange(12)
        trace.append(TraceRequest(number * 1e-3, 2 * HASH_TOKENS + 30, 8, blocks=(2 * book, 2 * book + 1)))
    by_arrival, by_prefix = (
        finished(Simulation(config(num_pages=520, max_num_seqs=4, scheduling_policy=policy), COST), trace)
        for policy in ("fcfs", "lpm")
    )
    assert by_prefix.hit_rate > by_arrival.hit_rate + 0.2
    assert by_prefix.output_rate > 1.5 * by_arrival.output_rate
    assert by_prefix.wait.most < 3 * by_arrival.wait.most


# --- overload ---------------------------------------------------------------------------------------


def test_overload_is_refused_and_costs_no_throughput() -> None:
    """Offered 1.5 times what it can serve: the queue stays bounded, the rate is that of the peak."""
    bounded = config(max_waiting=40, step_target_s=0.1)
    peak = finished(Simulation(bounded, COST), poisson(600, 13.0, CHAT))
    assert peak.refused < 0.1 * peak.requests
    assert peak.busy > 0.95
    over = finished(Simulation(bounded, COST), poisson(1800, 1.5 * peak.request_rate, CHAT))
    assert over.refused > 0.2 * over.requests
    assert over.queue <= 40
    assert over.output_rate > 0.95 * peak.output_rate
    assert over.wait.most < 40 / peak.request_rate * 1e3 * 2


def test_the_capacity_of_chunks_and_decodes_is_bounded_by_the_step_target() -> None:
    """Long prompts in plenty do not stop who streams: no gap far above the target."""
    trace = [TraceRequest(0.0, 16, 800), *[TraceRequest(1.0 + n, 4000, 1) for n in range(10)]]
    held = finished(Simulation(config(step_target_s=0.1), COST), trace)
    free = finished(Simulation(config(max_num_batched_tokens=4096), COST), trace)
    assert free.itl.most > 1500
    assert held.itl.p99 < 110
    assert held.itl.most < 300


def test_many_requests_at_once() -> None:
    """Counted, not timed: so many steps, no token more than needed."""
    one = [(1.0, (4, 24), (1, 2))]
    result = finished(Simulation(config(max_num_seqs=256), COST), poisson(20_000, float("inf"), one))
    assert result.overhead == 1.0
    assert result.steps < 3000


def test_the_scheduler_may_be_another() -> None:
    other = Scheduler(config())
    simulation = Simulation(config(), COST, scheduler=other)
    finished(simulation, poisson(5, 1.0, CHAT))
    assert simulation.core.scheduler is other
