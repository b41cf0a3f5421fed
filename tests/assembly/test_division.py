"""How the bytes of pages are divided where some layers have a window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.assembly.memory import Budget, FreeMemory, Pages, SlidingNeed, divide, plan_pages, sliding_need
from octavo.config import pages_at_a_time
from octavo.errors import CapacityError
from octavo.kernels.ops import KVSpec
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.split_kv import SplitKVCache

WHOLE, SLIDING = KVSpec(1, 8, 8, "f16"), KVSpec(1, 8, 8, "f16", window=64)
MIXED = [SLIDING, SLIDING, SLIDING, WHOLE]
PAGE = 16 * 32  # bytes of a page of one layer


def planned(free: int, num_pages: int | None = None, num_sliding: int | None = None) -> Budget:
    """For 4 contexts of 1024 tokens, in steps of 32."""
    need = sliding_need(MIXED, 1024, 4, 16, 32)
    assert need == SlidingNeed(64, 9, 24, 3 * 32)
    return plan_pages(Pages(MIXED, 1024, 4, 16, num_pages, need, num_sliding), FreeMemory(free, 1.0))


def test_only_mixed_models_with_longer_contexts_are_divided() -> None:
    assert sliding_need([WHOLE] * 4, 1024, 4, 16, 32) is None
    assert sliding_need([SLIDING] * 4, 1024, 4, 16, 32) is None
    assert sliding_need(MIXED, 9 * 16, 4, 16, 32) is None
    assert sliding_need(MIXED, 9 * 16 + 1, 4, 16, 32) is not None
    other = KVSpec(1, 8, 8, "f16", window=100)
    need = sliding_need([SLIDING, other, WHOLE], 1024, 4, 16, 32)
    assert need is not None
    assert need.window == 100


def test_roomy_memory_holds_everything_that_may_run() -> None:
    plan = planned(10**9)
    assert (plan.num_pages, plan.num_sliding_pages) == (4 * 64, 24)
    assert plan.kv_cache == 256 * PAGE + 24 * 3 * PAGE
    assert plan.kv_cache < 256 * 4 * PAGE / 3  # what one table for all layers would take


def test_tight_memory_holds_one_long_context_first() -> None:
    """Where one page for all layers would hold 36 pages, less than a context has."""
    free = 36 * 4 * PAGE
    plan = planned(free)
    assert (plan.num_pages, plan.num_sliding_pages) == (72, 24)
    assert plan_pages(Pages(MIXED, 1024, 4, 16), FreeMemory(free, 1.0)).num_pages == 36
    less = planned(64 * PAGE + 9 * 3 * PAGE)
    assert (less.num_pages, less.num_sliding_pages) == (64, 9)
    short = planned(64 * PAGE + 9 * 3 * PAGE - 1)
    assert (short.num_pages, short.num_sliding_pages) == (63, 9)


def test_so_little_that_each_page_has_a_sliding_one() -> None:
    plan = planned(8 * 4 * PAGE)
    assert (plan.num_pages, plan.num_sliding_pages) == (8, 8)
    with pytest.raises(CapacityError, match=f"a page of 16 tokens needs {4 * PAGE} bytes"):
        planned(4 * PAGE - 1)


def test_numbers_that_the_user_names_are_kept_or_refused() -> None:
    assert planned(10**9, num_pages=100).num_sliding_pages == 24
    assert planned(10**9, num_pages=20).num_sliding_pages == 20
    assert planned(100 * PAGE + 12 * 3 * PAGE, num_pages=100).num_sliding_pages == 12
    with pytest.raises(CapacityError, match="num_pages 100 needs"):
        planned(100 * PAGE + 8 * 3 * PAGE, num_pages=100)
    assert planned(10**9, num_sliding=30).num_sliding_pages == 30
    assert planned(10**9, num_pages=40, num_sliding=40).num_sliding_pages == 40
    with pytest.raises(CapacityError, match="num_sliding_pages 41: 40 pages fit beside them"):
        planned(10**9, num_pages=40, num_sliding=41)


@given(
    st.integers(1, 10**5), st.integers(1, 99), st.integers(1, 99), st.integers(1, 40), st.integers(0, 40),
    st.integers(1, 90), st.integers(1, 9),
)  # fmt: skip
def test_what_is_divided_fits_and_leaves_nothing_useful(
    room: int, page: int, sliding_page: int, most: int, more: int, longest: int, sequences: int
) -> None:
    need = SlidingNeed(8, min(most, longest), min(most, longest) + more, 1)
    wanted = longest * sequences
    pages, sliding = divide(room, page, sliding_page, Pages((), longest, sequences, 1, sliding=need))
    assert 0 <= sliding <= pages <= wanted
    assert pages * page + sliding * sliding_page <= room
    if pages < wanted:  # another page, with a sliding one where each has one, would not fit
        other = page + sliding_page * (sliding == pages)
        assert pages * page + sliding * sliding_page + other > room
    if pages >= longest:
        assert sliding >= need.most  # so that the longest context can be served
    if sliding < need.enough and sliding < pages:  # nothing is kept from them that is not one context's
        assert pages * page < longest * page + sliding_page + page


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8", "int16"])
def test_the_plan_is_what_gets_allocated(dtype: str) -> None:
    specs = [KVSpec(2, 8, 8, dtype, window=64 if i % 3 else None) for i in range(7)]
    need = sliding_need(specs, 1024, 2, 16, 32)
    plan = plan_pages(Pages(specs, 1024, 2, 16, sliding=need), FreeMemory(10**9))
    kv = SplitKVCache(ReferenceBackend(), specs, plan.num_pages, plan.num_sliding_pages, 16)
    spare = kv.sliding.nbytes // (plan.num_sliding_pages + 1)
    assert kv.nbytes - spare == plan.kv_cache
    assert plan.num_sliding_pages == 2 * pages_at_a_time(1024, 16, 64, 1) + 4
