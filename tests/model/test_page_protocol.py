"""Copy-on-write, publishing and eviction in every state of small worlds, and mistakes that this finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from model.explorer import Size, explore
from octavo.engine.groups.sliding_pages import SlidingPages
from octavo.engine.groups.windows import Window
from octavo.engine.kv_manager import KVManager
from octavo.engine.page_pool import IntegrityError
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request
from support.page_mutants import (
    Patch,
    evict_what_is_locked,
    fork_without_counting,
    fork_without_locking,
    keep_the_page_that_was_copied,
    publish_what_a_sibling_holds,
    write_to_a_shared_page,
)

SMALL = Size(num_pages=3, max_len=3, prompts=((0,), (0, 0, 0)))  # the longer one can be a hit
WIDE = Size(num_pages=4, max_len=3, max_running=3, prompts=((0,),), tokens=(0,))
LARGE = Size()
MIXED = Size(
    num_pages=4,
    page_size=1,
    max_len=4,
    prompts=((0,), (0, 0, 0)),
    tokens=(0,),
    sliding_window=2,
    num_sliding=3,
)
WINDOWED = Size(num_pages=4, page_size=1, max_len=4, prompts=((0,), (0, 0, 0)), tokens=(0,), window=2)


def free_what_is_seen(patch: pytest.MonkeyPatch) -> None:
    """The window's edge off by one."""
    patch.setattr(Window, "first_page", lambda self, n: max(n - self.size + 2, 0) // self.page_size)


def leave_pages_to_the_tree(patch: pytest.MonkeyPatch) -> None:
    """The path is unlocked, its end not withdrawn."""

    def mutant(self: PrefixCache, node: Any, count: int) -> bool:
        self.unlock(node)
        return True

    patch.setattr(PrefixCache, "withdraw", mutant)


@pytest.mark.parametrize("size", [SMALL, WIDE], ids=["small", "wide"])
def test_every_state_is_sound(size: Size) -> None:
    found = explore(size, 20_000)
    assert found.complete
    assert found.states > 200
    assert found.copies > 20
    assert found.evictions > 50


def test_without_a_cache() -> None:
    found = explore(Size(num_pages=3, max_len=3, prompts=((0,), (0, 0)), caching=False), 20_000)
    assert found.complete
    assert found.copies > 3


@pytest.mark.parametrize("caching", [True, False])
def test_with_a_window(caching: bool) -> None:
    found = explore(replace(WINDOWED, caching=caching), 20_000)
    assert found.complete
    assert found.states > (200 if caching else 20)


@pytest.mark.parametrize("mutate", [free_what_is_seen, leave_pages_to_the_tree], ids=lambda m: m.__name__)
def test_the_mistake_with_a_window_is_found(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((IntegrityError, AssertionError)) as caught:
        explore(WINDOWED, 20_000)
    assert caught.value.__notes__[0].count("->") <= 6


SINGLES = replace(MIXED, num_pages=3, max_len=3, num_sliding=2, prompts=((0,), (0, 0)))
PAIRS = replace(MIXED, num_pages=3, page_size=2, num_sliding=2)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("size", [SINGLES, PAIRS], ids=["singles", "pairs"])
def test_with_sliding_pages(size: Size, caching: bool) -> None:
    found = explore(replace(size, caching=caching), 20_000)
    assert found.complete
    assert found.states > (300 if caching else 10)
    assert found.copies > 3 or size is SINGLES


def use_the_whole_hit_of_sliding_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlidingPages, "usable", lambda self, pages: len(pages))


def give_away_what_a_sibling_sees(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: SlidingPages, pages: Any) -> None:
        for page in pages:
            self._idle.pop(page, None)
            self._seen_by[page] = 1

    patch.setattr(SlidingPages, "see", mutant)


def replace_what_others_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "unused_pages", lambda self, node, tokens: self._pages_below(node, tokens))


@pytest.mark.parametrize(
    "mutate",
    [
        free_what_is_seen,
        use_the_whole_hit_of_sliding_pages,
        give_away_what_a_sibling_sees,
        replace_what_others_read,
    ],
    ids=lambda m: m.__name__,
)
def test_the_mistake_with_sliding_pages_is_found(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((IntegrityError, AssertionError)) as caught:
        explore(MIXED, 20_000)
    assert caught.value.__notes__[0].count("->") <= 8


@pytest.mark.slow
@pytest.mark.parametrize("size", [MIXED, replace(PAIRS, num_pages=4, max_len=5, num_sliding=3)])
def test_every_state_of_a_larger_world_with_sliding_pages(size: Size) -> None:
    found = explore(size, 10**6)
    assert found.complete
    assert found.states > 1_000


@pytest.mark.slow
def test_every_state_of_a_larger_world() -> None:
    found = explore(LARGE, 10**6)
    assert found.complete
    assert found.states > 5_000


# --- mistakes ---------------------------------------------------------------------------------------


def copy_for_one_of_the_two_alone(patch: pytest.MonkeyPatch) -> None:
    """The parent of a fork goes on writing where it was."""
    regroup = KVManager.regroup

    def mutant(self: KVManager, members: Any, parents: Any, gone: Any) -> None:
        regroup(self, members, parents, gone)
        members[0].kv.shares_tail = False

    patch.setattr(KVManager, "regroup", mutant)


def forget_to_copy(patch: pytest.MonkeyPatch) -> None:
    grow = KVManager.grow

    def mutant(self: KVManager, request: Request, num_tokens: int) -> Any:
        growth = grow(self, request, num_tokens)
        return growth if growth is None or growth.copy is None else type(growth)(growth.pages, None)

    patch.setattr(KVManager, "grow", mutant)


def publish_a_partial_page(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: KVManager, request: Request) -> int:
        return -(-min(request.kv.num_computed_tokens, len(request.token_ids)) // self.page_size)

    patch.setattr(KVManager, "_full_pages", mutant)


def evict_without_freeing(patch: pytest.MonkeyPatch) -> None:
    trim = PrefixCache._trim

    def mutant(self: PrefixCache, leaf: Any, count: int) -> None:
        self._pool.retain(leaf.pages[-1:])
        trim(self, leaf, count)

    patch.setattr(PrefixCache, "_trim", mutant)


def use_the_whole_hit(patch: pytest.MonkeyPatch) -> None:
    """Begin at the end of the cached prefix, one page further than what was matched."""
    begin = KVManager.begin

    def mutant(self: KVManager, request: Request, reserve: int) -> bool:
        done = begin(self, request, reserve)
        if done and request.kv.num_computed_tokens:
            request.kv.num_computed_tokens += 1
        return done

    patch.setattr(KVManager, "begin", mutant)


MUTANTS: tuple[Patch, ...] = (
    write_to_a_shared_page,
    copy_for_one_of_the_two_alone,
    keep_the_page_that_was_copied,
    forget_to_copy,
    fork_without_locking,
    fork_without_counting,
    publish_what_a_sibling_holds,
    publish_a_partial_page,
    evict_what_is_locked,
    evict_without_freeing,
    use_the_whole_hit,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_mistake_is_found(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((IntegrityError, AssertionError)) as caught:
        explore(SMALL, 20_000)
    # The way there is told, and it is a short one: breadth first.
    assert caught.value.__notes__[0].count("->") <= 6
