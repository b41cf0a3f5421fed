"""Pages behind a sliding window come back to the pool, and nobody misses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.config import SchedulerConfig, pages_at_a_time
from octavo.engine import sources
from octavo.engine.groups.windows import Window, Windows
from octavo.engine.kv_manager import KVManager
from octavo.engine.page_pool import IntegrityError
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request
from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from support.engine_harness import Harness
from support.mutants import must_be_noticed
from support.page_parts import the
from support.random_driver import drive, drive_with_restarts
from support.toy_executor import PlanError

Patch = Callable[[pytest.MonkeyPatch], None]
LENGTH = 200
LONG = SamplingParams(max_tokens=150, ignore_eos=True, temperature=0.0)


def harness(window: int | None, page_size: int = 4, **options: Any) -> Harness:
    needed = pages_at_a_time(LENGTH, page_size, window, 16)
    pool = {"num_pages": needed, "page_size": page_size}
    return Harness(**{**pool, "max_model_len": LENGTH, "window": window, **options})


def held(h: Harness) -> int:
    """Pages that running requests hold, each counted once."""
    return len({page for r in h.scheduler.running for page in r.kv.page_table[r.kv.num_released_pages :]})


@pytest.mark.parametrize("page_size", [1, 4, 8])
@pytest.mark.parametrize("window", [1, 7, 8, 9, 16, 17, 31, 33])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_long_sequence_holds_what_it_sees(window: int, page_size: int, depth: int) -> None:
    h = harness(window, page_size, enable_prefix_caching=False, num_pages=256, depth=depth)
    h.add(list(range(1, 41)), LONG)
    most, lengths = 0, set[int]()
    while h.core.has_unfinished():
        h.step()
        if h.scheduler.running and len(h.scheduler.running[0].token_ids) > 41:
            most = max(most, held(h))
            lengths.add(len(h.scheduler.running[0].kv.page_table))
    assert most <= -(-window // page_size) + 2 + (depth == 2 and page_size == 1)
    assert max(lengths) >= 188 // page_size  # the table goes on, as if they were there
    h.drain_and_check()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_context_that_no_pool_would_hold_is_served(caching: bool, depth: int) -> None:
    h = harness(9, enable_prefix_caching=caching, depth=depth)
    whole = -(-LENGTH // 4)
    assert h.config.num_pages == h.config.pages_at_a_time == 11 < whole // 4
    with pytest.raises(InvalidRequestError, match="max_model_len 200 needs 50 pages, the pool has 11"):
        harness(None, num_pages=11)
    h.add(list(range(1, 190)), SamplingParams(max_tokens=10, ignore_eos=True))
    h.add([5], LONG)
    h.drain_and_check()


def test_too_small_a_pool_is_refused_with_what_a_window_needs() -> None:
    with pytest.raises(
        InvalidRequestError, match="max_model_len 200 with a window of 9 needs 11 pages, the pool has 10"
    ):
        harness(9, num_pages=10)
    with pytest.raises(InvalidRequestError, match="window must be at least 1, not 0"):
        SchedulerConfig(8, window=0)


def test_as_long_as_there_is_room_the_cache_keeps_what_is_behind() -> None:
    """A cached prefix is whole: the next turn of a long chat finds all of it."""
    h = harness(9, num_pages=100)
    prompt = list(range(1, 101))
    name = h.add(prompt, SamplingParams(max_tokens=21, ignore_eos=True, temperature=0.0))
    h.run()
    h.add(prompt + h.tokens[name, 0] + [3])
    h.run()
    assert h.kv.cache.hit_tokens == 120
    h.drain_and_check()


def test_who_lets_go_leaves_the_tree_whole() -> None:
    """Nobody else is there: the pages that it still sees are its own, those behind are cached for others."""
    h = harness(9, num_pages=30)
    h.add(list(range(1, 101)), SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0))
    while h.scheduler.running == [] or not h.scheduler.running[0].num_in_flight:
        h.step()
        if h.scheduler.running and h.scheduler.running[0].kv.num_computed_tokens >= 100:
            break
    request = h.scheduler.running[0]
    assert request.kv.num_released_pages == 0
    assert request.kv.num_cached_pages == 25
    the(h.kv, Windows).let_go(request)
    h.scheduler.check_integrity()
    first = (request.kv.num_computed_tokens - 9 + 1) // 4
    assert (request.kv.num_released_pages, request.kv.num_cached_pages) == (first, 0)
    assert h.kv.cache.num_pages == h.kv.cache.num_evictable == first
    assert len(h.kv.cache.matched_pages(list(range(1, 101)))) == first
    h.drain_and_check()


def test_nobody_lets_go_for_what_cannot_be_had() -> None:
    h = harness(9, num_pages=30)
    h.add(list(range(1, 101)), SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0))
    while not h.scheduler.running or h.scheduler.running[0].kv.num_computed_tokens < 100:
        h.step()
    [request], windows = h.scheduler.running, the(h.kv, Windows)
    assert not windows.make_room(30)
    assert (request.kv.num_released_pages, request.kv.num_cached_pages) == (0, 25)
    assert windows.make_room(20)
    assert request.kv.num_released_pages > 0
    h.drain_and_check()


def test_pages_that_others_use_stay() -> None:
    h = harness(9, num_pages=60)
    h.add(list(range(1, 41)), SamplingParams(n=2, max_tokens=8, ignore_eos=True, temperature=1.0))
    while len(h.scheduler.running) < 2:
        h.step()
    one = h.scheduler.running[0]
    the(h.kv, Windows).let_go(one)
    assert one.kv.num_released_pages == 0
    h.scheduler.check_integrity()
    h.drain_and_check()


def test_random_operations() -> None:
    engines = [drive(seed, 250, windowed=True) for seed in range(40)]
    engines += [h for seed in range(20) for h in drive_with_restarts(seed, 120, windowed=True)]
    # What is checked after every step must also have happened.
    assert sum(h.operations for h in engines) >= 10_000
    tables = [step.pages for h in engines for plan in h.executor.plans for step in plan.steps]
    assert sum(-1 in pages for pages in tables) > 25  # a request began without what is behind its window
    assert sum(h.scheduler.num_preemptions for h in engines) > 30
    assert sum(h.kv.cache.hit_tokens for h in engines) > 1000
    assert sum(h.executor.num_swaps for h in engines) > 5
    assert sum(h.config.num_pages < h.config.max_model_len // h.config.page_size for h in engines) > 5


@pytest.mark.slow
def test_many_random_operations() -> None:
    assert sum(drive(seed, 250, windowed=True).operations for seed in range(1000, 1200)) > 50_000


# --- mistakes ---------------------------------------------------------------------------------------


def free_a_page_too_early(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Window, computed: int) -> int:
        return max(computed - self.size + 1 + self.page_size, 0) // self.page_size

    patch.setattr(Window, "first_page", mutant)


def forget_that_a_token_sees_itself(patch: pytest.MonkeyPatch) -> None:
    """The window's edge off by one."""
    patch.setattr(Window, "first_page", lambda self, n: max(n - self.size + 2, 0) // self.page_size)


def free_what_drafts_may_come_back_to(patch: pytest.MonkeyPatch) -> None:
    let_go = Windows.let_go

    def mutant(self: Windows, request: Request) -> None:
        computed, request.kv.num_computed_tokens = (
            request.kv.num_computed_tokens,
            request.kv.num_scheduled_tokens,
        )
        let_go(self, request)
        request.kv.num_computed_tokens = computed

    patch.setattr(Windows, "let_go", mutant)


def leave_pages_to_the_tree(patch: pytest.MonkeyPatch) -> None:
    """The path is unlocked, its end not withdrawn: the tree may evict what the request reads."""

    def mutant(self: PrefixCache, node: Any, count: int) -> bool:
        self.unlock(node)
        return True

    patch.setattr(PrefixCache, "withdraw", mutant)


def withdraw_what_others_read(patch: pytest.MonkeyPatch) -> None:
    withdraw = PrefixCache.withdraw

    def mutant(self: PrefixCache, node: Any, count: int) -> bool:
        locks, node.locks = node.locks, 1
        done = withdraw(self, node, count)
        node.locks += locks - 1
        return done

    patch.setattr(PrefixCache, "withdraw", mutant)


def share_what_the_leader_has_given_back(patch: pytest.MonkeyPatch) -> None:
    def mutant(kv: Any, request: Request, pages: list[int]) -> int:
        leader = request.leader
        if leader is None or not leader.kv.page_table or leader.kv.arriving:
            return 0
        return min(leader.kv.num_computed_tokens, request.num_prompt_tokens - 1)

    patch.setattr(sources, "shared_with_leader", mutant)


MUTANTS: tuple[Patch, ...] = (
    free_a_page_too_early,
    forget_that_a_token_sees_itself,
    free_what_drafts_may_come_back_to,
    leave_pages_to_the_tree,
    withdraw_what_others_read,
    share_what_the_leader_has_given_back,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_mutant_is_caught(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    must_be_noticed(lambda seed: drive(seed, 250, windowed=True), 60)


def test_a_leader_keeps_what_a_sibling_is_about_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would leave the sibling a page of the tree that nobody has locked, which eviction counts on."""
    drive_with_restarts(1069, 120, windowed=True)
    monkeypatch.setattr(KVManager, "_pin", lambda self, leader: None)
    with pytest.raises((IntegrityError, PlanError)):
        drive_with_restarts(1069, 120, windowed=True)
