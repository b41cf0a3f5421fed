"""KVManager: tables, sharing and what enters the cache. (The random machine drives it alone.)"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.config import SchedulerConfig
from octavo.engine.kv_manager import NO_GROWTH, Growth, KVManager
from octavo.engine.page_pool import IntegrityError
from octavo.engine.request import EngineRequest, Namespace, Request
from octavo.params import RequestMetrics, SampledToken, SamplingParams

NONE: frozenset[int] = frozenset()


def request(tokens: list[int], salt: str | None = None) -> Request:
    asked = EngineRequest("r", list(tokens), SamplingParams(), namespace=Namespace(salt))
    return Request(asked, 0, 0, (0, 0), 999, NONE, RequestMetrics(0.0))


def manager(num_pages: int = 8, caching: bool = True) -> KVManager:
    length = 4 * num_pages
    return KVManager(SchedulerConfig(num_pages, 4, length, enable_prefix_caching=caching))


def compute(kv: KVManager, r: Request, until: int) -> None:
    """Compute and confirm the request's tokens up to a position."""
    assert kv.grow(r, until) is not None
    r.kv.num_computed_tokens = r.kv.num_scheduled_tokens = until
    kv.publish(r)


def test_tables_grow_by_whole_pages_as_needed() -> None:
    kv, r = manager(), request([1] * 9)
    assert kv.begin(r, 0)
    assert kv.grow(r, 4) == Growth((0,))
    assert kv.grow(r, 4) == NO_GROWTH
    assert kv.grow(r, 9) == Growth((1, 2))
    assert r.kv.page_table == [0, 1, 2]
    assert kv.usage() == 3 / 8
    kv.check_integrity([r])


def test_an_empty_pool_changes_nothing() -> None:
    kv, r, other = manager(3), request([1] * 9), request([2] * 8)
    assert kv.begin(r, 0)
    assert kv.begin(other, 0)
    assert kv.grow(r, 8) is not None
    assert kv.grow(other, 8) is None
    assert (other.kv.page_table, kv.num_available) == ([], 1)
    kv.check_integrity([r, other])


def test_full_computed_pages_stay_when_a_request_leaves() -> None:
    kv, r = manager(), request([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    kv.begin(r, 0)
    compute(kv, r, 10)
    table = list(r.kv.page_table)
    kv.release(r)
    assert (kv.cache.num_pages, kv.num_available, kv.pool.num_free) == (2, 8, 6)
    again = request(r.token_ids)
    kv.begin(again, 0)
    assert again.kv.page_table == table[:2]
    assert again.kv.num_computed_tokens == again.kv.num_scheduled_tokens == 8
    kv.check_integrity([again])


def test_at_least_one_token_is_computed_after_a_full_hit() -> None:
    kv, r = manager(), request([1, 2, 3, 4, 5, 6, 7, 8])
    kv.begin(r, 0)
    compute(kv, r, 8)
    kv.release(r)
    assert kv.cache.num_pages == 2
    again = request(r.token_ids)
    kv.begin(again, 0)
    assert again.kv.num_computed_tokens == 4
    compute(kv, again, 8)
    assert again.kv.num_cached_pages == 1  # the tree has its own copy of the second page
    kv.check_integrity([again])
    kv.release(again)
    assert (kv.cache.num_pages, kv.num_available) == (2, 8)
    kv.check_integrity([])


def test_what_was_not_computed_or_not_kept_does_not_enter() -> None:
    kv, r = manager(), request([1, 2, 3, 4, 5, 6, 7, 8, 9])
    kv.begin(r, 0)
    kv.grow(r, 9)
    r.kv.num_computed_tokens, r.kv.num_scheduled_tokens = 7, 9
    kv.release(r)
    assert kv.cache.num_pages == 1
    # Verified drafts beyond a stop token: computed, but cut from the sequence.
    s = request([20, 21, 22])
    kv.begin(s, 0)
    kv.grow(s, 8)
    s.kv.num_computed_tokens = s.kv.num_scheduled_tokens = 8
    s.append([SampledToken(23)])
    kv.release(s)
    assert kv.cache.num_pages == 2
    failed = request([30, 31, 32, 33, 34])
    kv.begin(failed, 0)
    kv.grow(failed, 5)
    failed.kv.num_computed_tokens = failed.kv.num_scheduled_tokens = 5
    kv.release(failed, publish=False)
    assert (kv.cache.num_pages, kv.num_available) == (2, 8)
    kv.check_integrity([])


def test_salts_and_switched_off_caching_share_nothing() -> None:
    kv = manager()
    for salt, hit in ((None, 0), ("a", 0), ("a", 4), (None, 4)):
        r = request([1, 2, 3, 4, 5], salt)
        kv.begin(r, 0)
        assert r.kv.num_computed_tokens == hit
        compute(kv, r, 5)
        kv.release(r)
    off = manager(caching=False)
    for _ in range(2):
        r = request([1, 2, 3, 4, 5])
        off.begin(r, 0)
        assert (r.kv.num_computed_tokens, off.cached_tokens(r)) == (0, 0)
        compute(off, r, 5)
        off.check_integrity([r])
        off.release(r)
    assert off.cache.num_pages == 0


def test_cached_pages_are_evicted_when_the_pool_is_empty() -> None:
    kv = manager(3)
    first = request([1, 2, 3, 4, 5, 6, 7, 8])
    kv.begin(first, 0)
    compute(kv, first, 8)
    kv.release(first)
    assert kv.pool.num_free == 1
    other = request([9] * 12)
    assert kv.begin(other, 0)
    assert kv.grow(other, 12) is not None
    assert kv.cache.num_pages == 0
    kv.check_integrity([other])


def test_nobody_begins_without_room_for_what_is_known_and_reserved() -> None:
    kv = manager(4)
    assert not kv.begin(request([1] * 17), 0)
    assert not kv.begin(request([1] * 12), 2)
    r = request([1] * 12)
    assert kv.begin(r, 1)
    kv.check_integrity([r])


def test_a_wrong_count_or_lock_is_seen() -> None:
    kv, r = manager(), request([1, 2, 3, 4, 5])
    kv.begin(r, 0)
    compute(kv, r, 5)
    with pytest.raises(IntegrityError, match="page 0: 2 references, 1 owners"):
        kv.check_integrity([])
    node = r.kv.cache_node
    assert node is not None
    kv.cache.lock(node)
    with pytest.raises(IntegrityError, match="2 locks, 1 users"):
        kv.check_integrity([r])


def sibling(leader: Request) -> Request:
    r = request(leader.token_ids[: leader.num_prompt_tokens], leader.cache_key)
    r.leader = leader
    return r


@pytest.mark.parametrize("caching", [True, False])
def test_siblings_share_the_prompt_and_copy_its_partial_page_when_they_write(caching: bool) -> None:
    kv, leader = manager(caching=caching), request([1] * 11)
    kv.begin(leader, 0)
    compute(kv, leader, 11)
    one, two = sibling(leader), sibling(leader)
    for r in (one, two):
        assert kv.begin(r, 0)
        assert r.kv.num_computed_tokens == 10
        assert r.kv.page_table == leader.kv.page_table
        growth = kv.grow(r, 11)
        assert growth is not None
        assert growth.pages == ()
        assert growth.copy == (leader.kv.page_table[2], r.kv.page_table[2])
        assert r.kv.page_table[:2] == leader.kv.page_table[:2]
        kv.check_integrity([leader, one, two] if r is two else [leader, one])
    assert kv.pool.num_free == 8 - 5
    kv.release(leader)
    kv.release(one)
    kv.check_integrity([two])


def test_a_prompt_of_whole_pages_is_shared_but_for_a_copy_of_the_last() -> None:
    kv, leader = manager(), request([1] * 8)
    kv.begin(leader, 0)
    compute(kv, leader, 8)
    r = sibling(leader)
    assert kv.begin(r, 0)
    assert (r.kv.num_computed_tokens, r.kv.num_cached_pages) == (7, 1)
    assert kv.grow(r, 8) == Growth((), (leader.kv.page_table[1], r.kv.page_table[1]))
    kv.check_integrity([leader, r])


def test_no_room_for_the_copy_is_no_room() -> None:
    kv, leader = manager(3), request([1] * 11)
    kv.begin(leader, 0)
    compute(kv, leader, 11)
    r = sibling(leader)
    assert not kv.begin(r, 0)
    assert not r.kv.page_table
    kv.check_integrity([leader])


def test_what_siblings_hold_enters_the_tree_with_its_last_holder() -> None:
    kv = manager(12)
    leader, other = request([1] * 11), request([1] * 5)
    kv.begin(leader, 0)
    kv.begin(other, 0)
    compute(kv, other, 5)
    compute(kv, leader, 11)  # the tree has the other's first page: the leader keeps its own to itself
    r = sibling(leader)
    assert kv.begin(r, 0)
    assert r.kv.page_table[:2] == [other.kv.page_table[0], leader.kv.page_table[1]]
    assert kv.grow(r, 11) is not None
    kv.release(leader)
    kv.check_integrity([other, r])
    assert len(kv.cache.matched_pages([1] * 11)) == 1
    r.kv.num_computed_tokens = 11
    kv.release(r)
    assert len(kv.cache.matched_pages([1] * 11)) == 2
    kv.check_integrity([other])


class ManagerMachine(RuleBasedStateMachine):
    """Requests begin, compute in chunks, generate and leave, in a pool that is often full."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVManager(SchedulerConfig(10, 3, 30))
        self.running: list[Request] = []
        self.content: dict[int, tuple[int, ...]] = {}  # page -> the prefix whose KV it holds

    @rule(
        tokens=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=20),
        salt=st.sampled_from([None, "x"]),
        reserve=st.integers(0, 3),
    )
    def begin(self, tokens: list[int], salt: str | None, reserve: int) -> None:
        r = request(tokens, salt)
        if not self.kv.begin(r, reserve):
            assert not r.kv.page_table
            return
        assert r.kv.num_computed_tokens < len(tokens)
        for at, page in enumerate(r.kv.page_table):
            assert self.content[page] == tuple(tokens[: (at + 1) * 3]), "a cached page holds another prefix"
        self.running.append(r)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 7))
    def begin_sibling(self, data: st.DataObject, count: int) -> None:
        leader = data.draw(st.sampled_from(self.running))
        r = sibling(leader)
        if not self.kv.begin(r, 0):
            return
        shared = min(leader.kv.num_computed_tokens, r.num_prompt_tokens - 1)
        assert r.kv.num_computed_tokens >= shared
        self.running.append(r)
        self._compute(r, count)
        assert r.kv.num_computed_tokens > shared, "it was let in, so there is room for it"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 7))
    def compute(self, data: st.DataObject, count: int) -> None:
        r = data.draw(st.sampled_from(self.running))
        self._compute(r, count)
        if data.draw(st.booleans()):
            self.kv.publish(r)

    def _compute(self, r: Request, count: int) -> None:
        end = min(r.kv.num_computed_tokens + count, len(r.token_ids))
        old = list(r.kv.page_table)
        new = self.kv.grow(r, end)
        if new is None:
            assert r.kv.page_table == old
            return
        if new.copy is not None:
            source, target = new.copy
            old[old.index(source)] = target
            self.content[target] = self.content[source]
        assert r.kv.page_table == old + list(new.pages)
        for position in range(r.kv.num_computed_tokens, end):
            page = r.kv.page_table[position // 3]
            assert self.kv.pool.references(page) == 1, "a shared page is written"
            self.content[page] = tuple(r.token_ids[: position + 1])
        r.kv.num_computed_tokens = r.kv.num_scheduled_tokens = end

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.sampled_from([1, 2]))
    def generate(self, data: st.DataObject, token: int) -> None:
        data.draw(st.sampled_from(self.running)).append([SampledToken(token)])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), publish=st.booleans())
    def leave(self, data: st.DataObject, publish: bool) -> None:
        r = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.kv.release(r, publish)

    @rule()
    def reset(self) -> None:
        empty = self.kv.reset_prefix_cache()
        assert empty or self.running

    @invariant()
    def books_agree(self) -> None:
        self.kv.check_integrity(self.running)
        for r in self.running:
            for position in range(r.kv.num_computed_tokens):
                page = r.kv.page_table[position // 3]
                known = self.content[page]
                assert known[: position + 1] == tuple(r.token_ids[: position + 1])

    def teardown(self) -> None:
        for r in self.running:
            self.kv.release(r)
        assert self.kv.reset_prefix_cache()
        assert self.kv.pool.num_free == 10


ManagerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestManager = ManagerMachine.TestCase
