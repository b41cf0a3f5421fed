"""Pages of layers with a window beside such that see everything: few, and nobody misses what is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import SchedulerConfig, pages_at_a_time
from octavo.engine.groups.sliding_pages import SlidingPages
from octavo.engine.groups.windows import Window
from octavo.engine.page_group import NO_PAGE
from octavo.engine.page_pool import IntegrityError, PagePool
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request
from octavo.errors import InvalidRequestError
from octavo.params import BeamSearchParams, SamplingParams
from support.engine_harness import Harness
from support.mutants import must_be_noticed
from support.page_parts import the
from support.random_driver import drive, drive_with_restarts
from support.toy_executor import PlanError
from support.toy_sliding import ToySliding

Patch = Callable[[pytest.MonkeyPatch], None]
LENGTH = 200
LONG = SamplingParams(max_tokens=150, ignore_eos=True, temperature=0.0)
SHORT = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)
PROMPT = list(range(1, 101))


def harness(window: int, page_size: int = 4, spare: int = 0, **options: Any) -> Harness:
    """As many pages as a sequence of LENGTH needs, and sliding ones as many as it needs at a time."""
    most = pages_at_a_time(LENGTH, page_size, window, options.get("max_num_batched_tokens", 16))
    pools = {"num_pages": -(-LENGTH // page_size), "num_sliding_pages": most + spare}
    sizes = {"page_size": page_size, "max_model_len": LENGTH, "sliding_window": window}
    return Harness(**{**pools, **sizes, **options})


def sliding(h: Harness) -> SlidingPages:
    return the(h.kv, SlidingPages)


def stolen(h: Harness, number: int) -> None:
    """So many lose their sliding pages, as if others needed them: those that have been idle longest."""
    pages = sliding(h)
    for _ in range(number):
        pages._lose(pages._idle.popitem(last=False)[0])
    h.scheduler.check_integrity()


# --- which prefixes are usable ------------------------------------------------------------------------


@given(
    st.integers(1, 20),
    st.integers(1, 6),
    st.lists(st.booleans(), max_size=14),
    st.sampled_from([True, False]),
)
def test_a_prefix_is_usable_as_far_as_its_last_tokens_are_there(
    window: int, page_size: int, whole: list[bool], caching: bool
) -> None:
    pool = PagePool(max(len(whole), 1))
    pages = SlidingPages(Window(window, page_size, 99), pool, max(sum(whole), 1), caching)
    table = pool.allocate(len(whole))
    pages.take([page for page, there in zip(table, whole, strict=True) if there])

    def good(length: int) -> bool:
        """The token at this position sees nothing that is gone."""
        seen = range(max(length * page_size - window + 1, 0), length * page_size)
        return all(whole[position // page_size] for position in seen)

    assert pages.usable(table) == max(length for length in range(len(whole) + 1) if good(length))
    assert list(pages.whole(table)) == table[: [*whole, False].index(False)]
    for computed in range(len(whole) * page_size + 1):
        seen = {p // page_size for p in range(max(computed - window + 1, 0), computed)}
        # (Where it sees nothing of a page, that page is the one that it goes on writing to.)
        seen |= {computed // page_size} if computed % page_size else set()
        assert pages.reaches(computed, table) == all(whole[i] for i in seen)


def test_idle_ones_go_longest_idle_first() -> None:
    pool = PagePool(6)
    pages = SlidingPages(Window(4, 4, 9), pool, 3, True)
    first = pool.allocate(3)
    pages.take(first)
    pages.unsee([first[1], first[0]])
    assert pages.num_available == 2
    assert pages.usage() == pytest.approx(1 / 3)
    second = pool.allocate(1)
    pages.take(second)
    assert pages.of[first[1]] == NO_PAGE
    assert NO_PAGE not in (pages.of[first[0]], pages.of[first[2]])
    pages.see([first[0]])
    with pytest.raises(IntegrityError, match="no sliding page is free or idle"):
        pages.take(pool.allocate(1))
    with pytest.raises(IntegrityError, match="has no sliding page to be seen"):
        pages.see([first[1]])


# --- how many a sequence needs ------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 8])
@pytest.mark.parametrize("window", [1, 7, 8, 9, 16, 17, 33])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_long_sequence_sees_few(window: int, page_size: int, depth: int) -> None:
    h = harness(window, page_size, enable_prefix_caching=False, depth=depth)
    h.add(list(range(1, 41)), LONG)
    most = 0
    while h.core.has_unfinished():
        h.step()
        if h.scheduler.running and len(h.scheduler.running[0].token_ids) > 50:
            most = max(most, sliding(h).num_pages - sliding(h).num_available)
    assert 0 < most <= -(-window // page_size) + 2 + (depth == 2 and page_size == 1)
    h.drain_and_check()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("window", [8, 9, 10])
def test_the_longest_context_is_served_with_what_it_needs_at_a_time(
    caching: bool, depth: int, window: int
) -> None:
    h = harness(window, enable_prefix_caching=caching, depth=depth)
    assert h.config.num_sliding_pages == h.config.sliding_pages_at_a_time <= 11 < h.config.num_pages // 4
    h.add(list(range(1, 190)), SamplingParams(max_tokens=10, ignore_eos=True))
    h.add([5], LONG)
    h.add([5, 6, 7], SamplingParams(n=2, max_tokens=90, ignore_eos=True, temperature=1.0))
    h.drain_and_check()


def test_too_few_are_refused() -> None:
    with pytest.raises(
        InvalidRequestError,
        match=r"max_model_len 200 with a window of 9 .* needs 11 sliding pages, .*num_sliding_pages is 10",
    ):
        harness(9, spare=-1)
    with pytest.raises(InvalidRequestError, match="at most 50 are of use, and num_sliding_pages is 51"):
        harness(9, spare=40)
    with pytest.raises(InvalidRequestError, match="sliding_window must be at least 1"):
        SchedulerConfig(600, sliding_window=0, num_sliding_pages=8)
    with pytest.raises(InvalidRequestError, match="of a model without a window everywhere"):
        SchedulerConfig(600, sliding_window=8, window=8, num_sliding_pages=600)


def test_more_beams_than_sliding_pages_are_refused() -> None:
    h = harness(9, num_pages=200)
    beams = BeamSearchParams(3, max_tokens=90)
    params = SamplingParams(n=1, max_tokens=90, beam_search=beams, ignore_eos=True)
    with pytest.raises(InvalidRequestError, match="3 beams see up to 33 sliding pages"):
        h.add(PROMPT, params)
    h = harness(9, num_pages=200, spare=22)
    h.add(PROMPT, params)
    h.drain_and_check()


# --- prefixes -----------------------------------------------------------------------------------------


def served(h: Harness, prompt: Sequence[int]) -> list[int]:
    name = h.add(prompt, SHORT)
    h.run()
    return h.tokens[name, 0]


def test_a_cached_prefix_is_found_whole_while_its_end_is_there() -> None:
    h = harness(9, num_pages=100, num_sliding_pages=100)
    answer = served(h, PROMPT)
    served(h, [*PROMPT, *answer, 3])
    assert h.kv.cache.hit_tokens == 104
    h.drain_and_check()


@pytest.mark.parametrize(("taken", "found"), [(0, 104), (22, 104), (24, 104), (25, 0), (26, 0)])
def test_what_lies_behind_the_window_is_not_missed(taken: int, found: int) -> None:
    """26 pages: the token after 104 sees 8 of theirs, pages 24 and 25."""
    h = harness(9, num_pages=100, num_sliding_pages=100)
    answer = served(h, PROMPT)
    stolen(h, taken)
    known = [*PROMPT, *answer, 3]
    served(h, known)
    assert h.kv.cache.hit_tokens == found
    served(h, known)  # what was computed anew is in the tree, in the place of what had lost its end
    assert h.kv.cache.hit_tokens == found + 108
    h.drain_and_check()


def test_a_hit_that_is_cut_short_begins_where_a_window_is_whole() -> None:
    h = harness(9, num_pages=100, num_sliding_pages=100)
    served(h, PROMPT[:60])
    served(h, PROMPT)  # it begins with pages 13 and 14, which are idle after all those before them
    before = h.kv.cache.hit_tokens
    pages = sliding(h)
    last = h.kv.cache.matched_pages(PROMPT)[-1]
    del pages._idle[last]
    pages._lose(last)
    served(h, [*PROMPT, 7])
    assert h.kv.cache.hit_tokens - before == 96
    h.drain_and_check()


def test_pages_that_somebody_reads_are_not_replaced() -> None:
    h = harness(9, num_pages=150, num_sliding_pages=40)
    h.add(PROMPT, LONG.replace(max_tokens=90))
    while not h.scheduler.running or h.scheduler.running[0].kv.num_computed_tokens < 150:
        h.step()
    stolen(h, sliding(h).num_available - len(sliding(h)._free))
    assert h.kv.cached_tokens(h.scheduler.running[0]) == 0
    h.add([*PROMPT, 7], SHORT)
    h.drain_and_check()


# --- everything at once -------------------------------------------------------------------------------


def test_random_operations() -> None:
    engines = [drive(seed, 250, mixed=True) for seed in range(30)]
    engines += [h for seed in range(15) for h in drive_with_restarts(seed, 120, mixed=True)]
    # What is checked after every step must also have happened.
    assert sum(h.operations for h in engines) >= 8_000
    gone = [h.executor.sliding.gone for h in engines if h.executor.sliding is not None]
    assert sum(gone) > 10_000
    assert sum(h.scheduler.num_preemptions for h in engines) > 30
    assert sum(h.kv.cache.hit_tokens for h in engines) > 1000
    assert sum(h.executor.num_swaps for h in engines) > 5
    assert sum(h.executor.num_copies for h in engines) > 100
    assert sum(h.kv.disk.hit_tokens for h in engines) > 0


@pytest.mark.slow
def test_many_random_operations() -> None:
    engines = [drive(seed, 250, mixed=True) for seed in range(1000, 1200)]
    engines += [h for seed in range(1000, 1200) for h in drive_with_restarts(seed, 120, mixed=True)]
    assert sum(h.operations for h in engines) > 100_000


# --- mistakes ---------------------------------------------------------------------------------------


def pass_a_page_too_early(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Window, computed: int) -> int:
        return max(computed - self.size + 1 + self.page_size, 0) // self.page_size

    patch.setattr(Window, "first_page", mutant)


def forget_that_a_token_sees_itself(patch: pytest.MonkeyPatch) -> None:
    """The window's edge off by one."""
    patch.setattr(Window, "first_page", lambda self, n: max(n - self.size + 2, 0) // self.page_size)


def pass_what_drafts_may_come_back_to(patch: pytest.MonkeyPatch) -> None:
    advance = SlidingPages.advance

    def mutant(self: SlidingPages, request: Request) -> None:
        computed, request.kv.num_computed_tokens = (
            request.kv.num_computed_tokens,
            request.kv.num_scheduled_tokens,
        )
        advance(self, request)
        request.kv.num_computed_tokens = computed

    patch.setattr(SlidingPages, "advance", mutant)
    patch.setattr(SlidingPages, "grow", mutant)


def use_the_whole_hit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingPages, "usable", lambda self, pages: len(pages))


def look_at_the_last_page_alone(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: SlidingPages, pages: Sequence[int]) -> int:
        there = [i + 1 for i, page in enumerate(pages) if self.of[page] != NO_PAGE]
        return max(there, default=0)

    patch.setattr(SlidingPages, "usable", mutant)


def share_what_the_leader_does_not_see(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingPages, "reaches", lambda self, computed, table: True)


def copy_the_page_alone(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: SlidingPages, source: int, target: int) -> None:
        self._sources[source] = self._targets[target] = self.of[target]
        self.unsee([source])

    patch.setattr(SlidingPages, "copy", mutant)


def see_without_counting(patch: pytest.MonkeyPatch) -> None:
    """The first who lets go of a shared page gives its sliding page away."""

    def mutant(self: SlidingPages, pages: Sequence[int]) -> None:
        for page in pages:
            self._idle.pop(page, None)
            self._seen_by[page] = 1

    patch.setattr(SlidingPages, "see", mutant)


def give_away_what_is_seen(patch: pytest.MonkeyPatch) -> None:
    take = SlidingPages.take

    def mutant(self: SlidingPages, pages: Sequence[int]) -> None:
        take(self, pages)
        for page in pages[:1]:
            self._idle[page] = None

    patch.setattr(SlidingPages, "take", mutant)


def bring_back_the_pages_alone(patch: pytest.MonkeyPatch) -> None:
    """From the swap space or from the disk, without their sliding pages."""
    patch.setattr(SlidingPages, "arrive", lambda self, pages: None)


def keep_on_disk_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingPages, "whole", lambda self, pages: pages)


def replace_what_others_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "unused_pages", lambda self, node, tokens: self._pages_below(node, tokens))


def replace_without_a_reference(patch: pytest.MonkeyPatch) -> None:
    replace = PrefixCache.replace

    def mutant(self: PrefixCache, node: Any, tokens: list[int], pages: list[int]) -> None:
        replace(self, node, tokens, pages)
        self._pool.release(self._pages_below(node, tokens)[:1])

    patch.setattr(PrefixCache, "replace", mutant)


MUTANTS: tuple[Patch, ...] = (
    pass_a_page_too_early,
    forget_that_a_token_sees_itself,
    pass_what_drafts_may_come_back_to,
    use_the_whole_hit,
    look_at_the_last_page_alone,
    share_what_the_leader_does_not_see,
    copy_the_page_alone,
    see_without_counting,
    give_away_what_is_seen,
    bring_back_the_pages_alone,
    keep_on_disk_what_is_gone,
    replace_what_others_read,
    replace_without_a_reference,
)


def drive_twice(seed: int) -> None:
    drive(seed, 250, mixed=True)
    drive_with_restarts(seed, 120, mixed=True)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_mutant_is_caught(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    must_be_noticed(drive_twice, 60)


def test_the_toy_is_not_blind() -> None:
    """What stands in a sliding page is looked at, not only whose it is."""
    h = harness(9)
    h.add(PROMPT[:30], SHORT)
    while not h.scheduler.running or h.scheduler.running[0].kv.num_computed_tokens < 30:
        h.step()
    toy = h.executor.sliding
    assert isinstance(toy, ToySliding)
    page = h.scheduler.running[0].kv.page_table[6]
    toy.slots[sliding(h).of[page]][1] = 12345
    with pytest.raises(PlanError, match="lacks position 25"):
        h.run()
