"""The swap space: when it is used, what comes back, and whose blocks they are."""

from __future__ import annotations

import pytest

from octavo.assembly.memory import FreeMemory, Pages, plan_pages
from octavo.config import EngineConfig
from octavo.engine.request import RequestState
from octavo.engine.sources import SwapSpace
from octavo.errors import CapacityError, InvalidRequestError
from octavo.kernels.ops import KVSpec
from octavo.params import SamplingParams
from support.engine_harness import Harness

LONG = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.0)


def crowded(num_swap_pages: int, **options: object) -> Harness:
    """Two requests of which the younger has to go when both have grown; nothing is cached."""
    h = Harness(
        num_pages=10, max_model_len=40, enable_prefix_caching=False, num_swap_pages=num_swap_pages, **options
    )  # type: ignore[arg-type]
    h.scheduler.growth_pages = 0
    h.add(list(range(1, 13)), LONG)
    h.add(list(range(21, 33)), LONG)
    return h


@pytest.mark.parametrize("depth", [1, 2])
def test_swapped_tokens_are_not_computed_again(depth: int) -> None:
    with_swap, without = crowded(10, depth=depth), crowded(0, depth=depth)
    for h in (with_swap, without):
        h.drain_and_check()
        assert h.scheduler.num_preemptions > 0
    assert with_swap.executor.num_swaps > 0
    assert without.executor.num_swaps == 0
    assert with_swap.computed_tokens() == 2 * (12 + 19) + with_swap.scheduler.num_preemptions * (depth - 1)
    assert without.computed_tokens() > with_swap.computed_tokens() + 12


def test_too_few_slots_mean_computing_anew() -> None:
    h = crowded(2)
    h.drain_and_check()
    assert h.scheduler.num_preemptions > 0
    assert h.executor.num_swaps == 0


def test_an_aborted_request_gives_its_slots_back() -> None:
    h = crowded(10)
    while h.scheduler.num_preemptions == 0:
        h.step()
    assert h.state("r1") is RequestState.PREEMPTED
    assert h.kv.swap.pool.num_free < 10
    h.abort("r1")
    assert h.kv.swap.pool.num_free == 10
    h.drain_and_check()


def test_pages_go_where_it_costs_less() -> None:
    swap = SwapSpace(8, page_s=0.010)
    assert swap.take(64, 4) == []  # nothing is known yet about computing
    swap.observe(100, 0.1)  # 1 ms a token: 64 ms against 2 * 4 * 10 ms
    assert swap.take(64, 4) == []
    swap.observe(1000, 2.0)  # 2 ms a token or nearly
    assert len(swap.take(64, 4)) == 4
    assert swap.take(64 * 3, 12) == []  # there are not so many


def test_large_steps_say_more() -> None:
    swap = SwapSpace(8, page_s=0.010)
    swap.observe(1000, 1.0)
    for _ in range(5):
        swap.observe(1, 0.01)  # a decode step of 10 ms does not mean that a prompt costs 10 ms a token
    assert swap.take(64, 4) == []


def test_memory_is_shared_with_the_pages() -> None:
    spec = KVSpec(num_kv_heads=2, head_dim=32, v_head_dim=32, dtype="f32")
    gib = 2**30
    plan = plan_pages(Pages([spec], 4096, 1000, 16, swap_gib=1.0), FreeMemory(2 * gib, 0.5))
    assert plan.swap_space == gib
    assert plan.kv_cache <= gib / 2
    with pytest.raises(CapacityError, match="swap_space 4 GiB is more than the 2"):
        plan_pages(Pages([spec], 4096, 1000, 16, swap_gib=4.0), FreeMemory(2 * gib, 0.5))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_wrong_swap_space_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidRequestError, match="swap_space"):
        EngineConfig("smollm2", swap_space=wrong)
