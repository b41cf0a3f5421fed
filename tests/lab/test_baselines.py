"""The baselines are honest: they give the same tokens, and waste what their kind wastes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from octavo.bench.trace import TraceRequest, conversations
from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.engine.cost import CostModel
from octavo.engine.scheduler import Scheduler
from octavo.engine.step_plan import StepPlan, StepResult
from octavo.lab.baselines import ContiguousKV, StaticScheduler
from octavo.lab.fragmentation import fragmentation
from octavo.lab.simulate import Simulation
from octavo.params import SamplingParams
from support.toy_executor import Toy, ToyExecutor, alone

COST = CostModel(step_s=3e-3, token_s=1e-4, sample_s=1e-4)


def config(**changes: object) -> SchedulerConfig:
    settings = {"num_pages": 64, "page_size": 4, "max_model_len": 64, "max_num_seqs": 4}
    return SchedulerConfig(**settings | {"max_num_batched_tokens": 16} | changes)  # type: ignore[arg-type]


class Padding(ToyExecutor):
    """Draws on after max_tokens: padding is meant to be drawn."""

    def execute(self, plan: StepPlan) -> StepResult:
        rows = [replace(new, params=new.params.replace(max_tokens=None)) for new in plan.new_rows]
        return super().execute(replace(plan, new_rows=tuple(rows)))


@pytest.mark.parametrize("kind", ["static", "contiguous", "both"])
def test_tokens_are_those_of_each_request_alone(kind: str) -> None:
    """On the checking executor: no page is written by two, no token is lost or added."""
    small = config()
    kv = None if kind == "static" else ContiguousKV(small)
    scheduler = Scheduler(small, kv) if kind == "contiguous" else StaticScheduler(small, kv)
    toy, draw = Toy(), random.Random(4)
    core = EngineCore(Admission(small), Padding(small.num_pages, small.page_size, toy), scheduler=scheduler)
    wanted, got = {}, {}
    for number in range(30):
        prompt = [draw.randrange(50) for _ in range(draw.randint(1, 30))]
        params = SamplingParams(max_tokens=draw.randint(1, 30), ignore_eos=True, temperature=0.0)
        core.add_request(str(number), prompt, params)
        wanted[str(number)] = alone(prompt, params, 0, 0, small.max_model_len, toy)[0]
        got[str(number)] = []
    core.abort("7")
    for _ in range(2000):
        if not core.has_unfinished():
            break
        for update in core.step():
            got[update.request_id] += [token.token_id for token in update.tokens]
        core.check_integrity()
    assert not core.has_unfinished()
    assert {name: got[name] for name in wanted if name != "7"} == {
        name: tokens for name, tokens in wanted.items() if name != "7"
    }
    assert core.stats().generated_tokens == sum(map(len, got.values()))


def test_a_static_batch_takes_as_long_as_its_longest() -> None:
    """Two batches of four, each with one of 40: 80 steps of decoding, all rows in each."""
    lengths = [1, 2, 3, 40, 40, 3, 2, 1]
    trace = [TraceRequest(0.0, 4, length) for length in lengths]
    static = Simulation(config(), COST, scheduler=StaticScheduler(config()))
    continuous = Simulation(config(), COST)
    steps = static.run(trace).steps, continuous.run(trace).steps
    assert steps == (80, 41)
    assert static.executor.tokens == 8 * (4 + 39)
    assert continuous.executor.tokens == sum(4 + length - 1 for length in lengths)


def test_nobody_joins_a_static_batch() -> None:
    trace = [TraceRequest(0.0, 4, 30), TraceRequest(1e-6, 4, 1)]
    simulation = Simulation(config(), COST, scheduler=StaticScheduler(config()))
    simulation.run(trace)
    first, second = simulation.metrics
    assert first is not None
    assert second is not None
    assert first.finished_time is not None
    assert second.first_scheduled_time is not None
    assert second.first_scheduled_time >= first.finished_time


def test_slabs_bound_how_many_run() -> None:
    small = config(num_pages=40)  # 160 slots: two slabs of 64, and a rest that is too small
    kv = ContiguousKV(small)
    simulation = Simulation(small, COST, scheduler=Scheduler(small, kv))
    most = 0

    def watch(core: EngineCore, seconds: float) -> None:
        nonlocal most
        most = max(most, len(core.scheduler.running))
        core.check_integrity()

    simulation.watch = watch
    result = simulation.run([TraceRequest(0.0, 4, 10)] * 9)
    assert most == 2
    assert result.usage == 1.0
    assert kv.usage() == 0.0


def test_pages_waste_little_where_slabs_waste_most() -> None:
    """Internal waste below 4 % on pages of 16, above 60 % on slabs of 2,048."""
    large = SchedulerConfig(
        num_pages=2048, max_model_len=2048, max_num_batched_tokens=512, step_target_s=0.1,
        enable_prefix_caching=False, max_waiting=10**6,
    )  # fmt: skip
    paged, contiguous = fragmentation(large, conversations(150, 4.0, 2048))
    assert 0.001 < paged.waste < 0.04
    assert contiguous.waste > 0.6
    assert paged.running > 2 * contiguous.running


def test_waste_by_hand() -> None:
    """One prompt of 6 tokens, then 1 more: 8 slots on pages of 4, 64 in a slab."""
    small = config(enable_prefix_caching=False)
    paged, contiguous = fragmentation(small, [TraceRequest(0.0, 6, 2), TraceRequest(0.0, 6, 2)])
    # Measured after the step that computed the prompt; after the next one they are gone.
    assert paged.waste == pytest.approx(1 - 6 / 8)
    assert contiguous.waste == pytest.approx(1 - 6 / 64)
    with pytest.raises(ValueError, match="twice"):
        fragmentation(config(), [TraceRequest(0.0, 6, 2)])
