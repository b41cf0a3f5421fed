"""PagePool against a plain dictionary of counts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.engine.page_pool import IntegrityError, PagePool


def test_pages_come_lowest_first_and_the_last_freed_comes_again() -> None:
    pool = PagePool(4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.release([0, 1])
    assert pool.allocate(3) == [0, 1, 3]
    assert pool.num_free == 0


def test_a_page_is_free_when_its_last_owner_lets_go() -> None:
    pool = PagePool(1)
    pages = pool.allocate(1)
    pool.retain(pages)
    assert pool.release(pages) == 0
    assert (pool.num_free, pool.references(0)) == (0, 1)
    assert pool.release(pages) == 1
    assert pool.num_free == 1


def test_misuse_is_refused() -> None:
    pool = PagePool(2)
    with pytest.raises(IntegrityError, match="3 pages wanted, 2 are free"):
        pool.allocate(3)
    with pytest.raises(IntegrityError, match="page 0 is free and cannot be shared"):
        pool.retain([0])
    pages = pool.allocate(1)
    pool.release(pages)
    with pytest.raises(IntegrityError, match="page 0 was freed twice"):
        pool.release(pages)


def test_corruption_is_seen() -> None:
    pool = PagePool(2)
    pool.allocate(1)
    pool._free.append(0)
    with pytest.raises(IntegrityError, match="page 0 has 1 references"):
        pool.check_integrity()
    pool._free.append(0)
    with pytest.raises(IntegrityError, match="twice in the free list"):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Owners hold lists of pages; the pool must count as they do."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9)
        self.owners: list[list[int]] = []

    @rule(count=st.integers(0, 12))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(IntegrityError):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert len(set(pages)) == count == free - self.pool.num_free
        assert not any(page in owner for owner in self.owners for page in pages)
        self.owners.append(pages)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.pool.retain(owner)
        self.owners.append(list(owner))

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        owner = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        last = sum(not any(page in other for other in self.owners) for page in owner)
        assert self.pool.release(owner) == last

    @invariant()
    def counts_agree(self) -> None:
        self.pool.check_integrity()
        for page in range(self.pool.num_pages):
            assert self.pool.references(page) == sum(owner.count(page) for owner in self.owners)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase
