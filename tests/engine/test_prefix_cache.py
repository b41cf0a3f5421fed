"""PrefixCache against a plain set of cached prefixes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.engine.page_pool import IntegrityError, PagePool
from octavo.engine.prefix_cache import Node, PrefixCache

PAGE = 2


class Tree:
    """A cache whose pages are taken from a pool and left to the tree at once."""

    def __init__(self, num_pages: int = 32) -> None:
        self.pool = PagePool(num_pages)
        self.cache = PrefixCache(self.pool, PAGE)

    def put(self, tokens: list[int], salt: str | None = None) -> list[int]:
        """Cache a sequence of whole pages; returns the pages it now has."""
        node, pages = self.cache.match(tokens, salt)
        self.cache.lock(node)
        new = self.pool.allocate(len(tokens) // PAGE - len(pages))
        self.cache.insert(node, tokens[len(pages) * PAGE :], new)
        self.pool.release(new)
        self.cache.unlock(node)
        self.cache.check_integrity()
        return pages + new

    def get(self, tokens: list[int], salt: str | None = None) -> list[int]:
        node, pages = self.cache.match(tokens, salt)
        self.cache.lock(node)
        self.cache.unlock(node)
        self.cache.check_integrity()
        return pages


def test_the_longest_prefix_of_whole_pages_is_found() -> None:
    tree = Tree()
    pages = tree.put([1, 2, 3, 4, 5, 6])
    assert tree.get([1, 2, 3, 4, 5, 6, 7]) == pages
    assert tree.get([1, 2, 3, 4, 5]) == pages[:2]
    assert tree.get([1, 2, 3, 9]) == pages[:1]
    assert tree.get([1, 9]) == tree.get([1]) == tree.get([]) == []
    assert len(tree.cache.matched_pages([1, 2, 3, 4, 9, 9])) * PAGE == 4
    assert tree.cache.matched_pages([1, 2, 3, 4, 9, 9], "other") == []


def test_sequences_share_their_common_pages() -> None:
    tree = Tree()
    first = tree.put([1, 2, 3, 4, 5, 6])
    second = tree.put([1, 2, 3, 4, 7, 8])
    assert first[:2] == second[:2]
    assert tree.cache.num_pages == 4
    assert tree.get([1, 2, 3, 4, 5, 6]) == first
    assert tree.get([1, 2, 3, 4, 7, 8]) == second


def test_salts_never_meet() -> None:
    tree = Tree()
    mine = tree.put([1, 2, 3, 4], "me")
    assert tree.get([1, 2, 3, 4], "you") == tree.get([1, 2, 3, 4]) == []
    assert tree.put([1, 2, 3, 4], "you") != mine
    assert tree.get([1, 2, 3, 4], "me") == mine


def test_the_tree_keeps_its_own_copy_of_what_it_has() -> None:
    tree = Tree()
    pages = tree.put([1, 2, 3, 4])
    root, _ = tree.cache.match([])
    tree.cache.lock(root)
    again = tree.pool.allocate(3)
    assert tree.cache.holds_next(root, [1, 2])
    tree.cache.insert(root, [1, 2, 3, 4, 5, 6], again)
    tree.cache.unlock(root)
    tree.pool.release(again)
    assert tree.get([1, 2, 3, 4, 5, 6]) == [*pages, again[2]]
    assert tree.pool.num_free == 32 - 3


def test_only_whole_pages_enter() -> None:
    tree = Tree()
    root, _ = tree.cache.match([])
    with pytest.raises(IntegrityError, match="only whole pages"):
        tree.cache.insert(root, [1, 2, 3], tree.pool.allocate(2))


def test_least_recently_used_goes_first_from_its_end() -> None:
    tree = Tree()
    old, new = tree.put([1, 1, 2, 2, 3, 3]), tree.put([5, 5, 6, 6])
    tree.get([1, 1])  # the head of the old one is used again, its tail is not
    assert tree.cache.evict(1) == 1
    assert tree.get([1, 1, 2, 2, 3, 3]) == old[:2]
    assert tree.get([5, 5, 6, 6]) == new
    tree.get([1, 1, 2, 2])
    assert tree.cache.evict(2) == 2
    assert tree.get([5, 5]) == []
    assert tree.get([1, 1, 2, 2]) == old[:2]


def test_a_used_head_outlives_its_tail_and_a_newer_stranger() -> None:
    tree = Tree()
    tree.put([1, 1, 2, 2])
    stranger = tree.put([7, 7])
    head = tree.get([1, 1])
    tree.cache.evict(2)  # the tail (oldest), then the stranger; the head was used last
    assert tree.get([1, 1]) == head
    assert tree.get([7, 7]) == []
    assert tree.pool.references(stranger[0]) == 0


def test_what_is_locked_stays() -> None:
    tree = Tree()
    pages = tree.put([1, 1, 2, 2, 3, 3])
    node, _ = tree.cache.match([1, 1, 2, 2])
    tree.cache.lock(node)
    assert (tree.cache.num_evictable, tree.cache.evict(99)) == (1, 1)
    assert tree.get([1, 1, 2, 2, 3, 3]) == pages[:2]
    tree.cache.unlock(node)
    assert tree.cache.evict(99) == 2
    assert (tree.cache.num_pages, tree.pool.num_free) == (0, 32)
    with pytest.raises(IntegrityError, match="unlocked twice"):
        tree.cache.unlock(node)


def test_a_lock_survives_the_split_of_its_node() -> None:
    tree = Tree()
    pages = tree.put([1, 1, 2, 2, 3, 3])
    node, _ = tree.cache.match([1, 1, 2, 2, 3, 3])
    tree.cache.lock(node)
    tree.put([1, 1, 9, 9])
    assert tree.cache.evict(99) == 1
    assert tree.get([1, 1, 2, 2, 3, 3]) == pages
    tree.cache.unlock(node)
    tree.cache.check_integrity()


def test_a_prompt_in_chunks_stays_one_node() -> None:
    tree = Tree()
    node, _ = tree.cache.match([])
    tree.cache.lock(node)
    for chunk in ([1, 1], [2, 2, 3, 3], [4, 4]):
        pages = tree.pool.allocate(len(chunk) // PAGE)
        end = tree.cache.insert(node, chunk, pages)
        tree.pool.release(pages)
        if end is not node:
            tree.cache.lock(end)
            tree.cache.unlock(node)
            node = end
        tree.cache.check_integrity()
    assert len(tree.cache.nodes()) == 2  # with the root
    assert node.tokens == [1, 1, 2, 2, 3, 3, 4, 4]
    tree.cache.unlock(node)


def test_empty_roots_do_not_pile_up() -> None:
    tree = Tree()
    for tenant in range(30):
        tree.put([1, 2], str(tenant))
        tree.get([3, 4], str(tenant))
    tree.cache.evict(99)
    assert tree.cache.nodes() == []


def test_the_lru_order_does_not_grow_with_use() -> None:
    tree = Tree()
    tree.put([1, 2])
    for _ in range(1000):
        tree.get([1, 2])
    assert len(tree.cache._lru) < 100
    assert tree.cache.evict(1) == 1


class TreeMachine(RuleBasedStateMachine):
    """Users lock prefixes and extend them; the tree must find what was put and not evicted."""

    sequences = st.lists(st.sampled_from([1, 2]), min_size=0, max_size=14)
    salts = st.sampled_from([None, "tenant"])

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree(40)
        self.users: list[tuple[Node, list[int], list[int], str | None]] = []

    @rule(tokens=sequences, salt=salts)
    def use(self, tokens: list[int], salt: str | None) -> None:
        """Match, lock and keep a prefix; its pages must be there until unlocked."""
        cache = self.tree.cache
        found = cache.matched_pages(tokens, salt)
        node, pages = cache.match(tokens, salt)
        assert pages == found
        cache.lock(node)
        self.tree.pool.retain(pages)
        self.users.append((node, tokens[: len(found) * PAGE], pages, salt))

    @precondition(lambda self: self.users)
    @rule(data=st.data(), more=sequences)
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        """A user computes further pages and caches them, if nobody has them yet."""
        at = data.draw(st.integers(0, len(self.users) - 1))
        node, tokens, pages, salt = self.users[at]
        count = min(len(more) // PAGE, self.tree.pool.num_free)
        more = more[: count * PAGE]
        if not more or self.tree.cache.holds_next(node, more):
            return
        new = self.tree.pool.allocate(count)
        end = self.tree.cache.insert(node, more, new)
        self.tree.cache.lock(end)
        self.tree.cache.unlock(node)
        self.users[at] = end, tokens + more, pages + new, salt

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        node, _, pages, _ = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
        self.tree.cache.unlock(node)
        self.tree.pool.release(pages)

    @rule(count=st.integers(1, 5))
    def evict(self, count: int) -> None:
        free, evictable = self.tree.pool.num_free, self.tree.cache.num_evictable
        assert self.tree.cache.evict(count) == min(count, evictable)
        assert self.tree.pool.num_free == free + min(count, evictable)

    @invariant()
    def users_find_their_pages(self) -> None:
        self.tree.pool.check_integrity()
        self.tree.cache.check_integrity()
        for node, tokens, pages, salt in self.users:
            path, walk = list[int](), node
            while walk.parent is not None:
                path, walk = walk.pages + path, walk.parent
            assert path == pages
            assert self.tree.cache.matched_pages(tokens, salt) == pages

    def teardown(self) -> None:
        for node, _, pages, _ in self.users:
            self.tree.cache.unlock(node)
            self.tree.pool.release(pages)
        self.tree.cache.evict(self.tree.cache.num_evictable)
        assert self.tree.pool.num_free == 40
        assert self.tree.cache.nodes() == []


TreeMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestTree = TreeMachine.TestCase
