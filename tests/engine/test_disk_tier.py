"""The prefix cache's tier on disk: what it keeps, what it gives back, and what it never does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine import disk_prefixes, disk_tier, page_keys, prefix_cache
from octavo.engine.disk_prefixes import DiskPrefixes
from octavo.engine.disk_tier import DiskTier
from octavo.engine.page_pool import IntegrityError
from octavo.engine.request import Request
from octavo.params import BeamSearchParams, SamplingParams
from support.engine_harness import Harness
from support.mutants import must_be_noticed
from support.random_driver import drive_with_restarts, fail_once
from support.toy_pages import ToyPages

SHORT = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0)
PROMPT = list(range(1, 22))  # five whole pages of 4, and a token


def engine(pages: ToyPages | None, **options: Any) -> Harness:
    return Harness(**{"num_pages": 12, "page_size": 4, "page_file": pages, **options})


def restarted(prompt: list[int], blocks: int = 40, salt: str | None = None, **options: Any) -> Harness:
    """An engine that finds what another one has left of this prompt."""
    first = engine(ToyPages(blocks, **options))
    first.add(prompt, SHORT, salt=salt)
    return engine(first.stop())


def loads(h: Harness) -> int:
    return sum(len(plan.loads) for plan in h.executor.plans)


@pytest.mark.parametrize("max_saving", [1, 3, 30])
def test_a_restart_finds_the_prompt(max_saving: int) -> None:
    h = restarted(PROMPT, max_saving=max_saving)
    name = h.add(PROMPT, SHORT)
    h.run()
    assert h.cached[name, 0] == 20
    assert h.computed_tokens() == 1 + 1  # the prompt's last token, and the first that followed it
    stats = h.core.stats()
    assert (stats.external_prefix_queries, stats.external_prefix_hits, stats.prefix_hits) == (21, 20, 0)
    h.add(PROMPT, SHORT)  # now it is in memory
    h.drain_and_check()
    assert (loads(h), h.core.stats().prefix_hits) == (5, 20)


def test_what_was_evicted_comes_back() -> None:
    h = engine(ToyPages(40))
    for book in range(6):
        h.add([book + 50, *PROMPT], SHORT)
        h.run()
    assert h.executor.page_file is not None
    assert h.executor.page_file.saved > 10
    h.add([50, *PROMPT], SHORT)
    h.drain_and_check()
    assert loads(h) == 5


def test_memory_and_disk_may_hold_a_part_each() -> None:
    """The tree has lost the end of a prefix; the beginning is taken from it, the end from disk."""
    h = engine(ToyPages(40))
    h.add(PROMPT, SHORT)
    h.run()
    h.kv.cache.evict(3)
    h.add([9], SHORT)
    h.run()  # its plan saves what was evicted
    name = h.add(PROMPT, SHORT)
    h.drain_and_check()
    assert h.cached[name, 0] == 20
    assert 0 < loads(h) < 5


def test_only_the_same_salt_finds_it() -> None:
    for salt in (None, "", "other", "\ud800"):
        h = restarted(PROMPT, salt="mine")
        h.add(PROMPT, SHORT, salt=salt)
        h.drain_and_check()
        assert loads(h) == 0
    h = restarted(PROMPT, salt="mine")
    h.add(PROMPT, SHORT, salt="mine")
    h.drain_and_check()
    assert loads(h) == 5


def test_a_damaged_page_ends_what_is_found() -> None:
    first = engine(ToyPages(40))
    first.add(PROMPT, SHORT)
    pages = first.stop()
    assert pages is not None
    keys = page_keys.page_keys(page_keys.root_key(None), PROMPT, 4)
    block = next(block for block, (key, _) in pages.kept.items() if key == keys[2])
    h = engine(pages)
    pages.kept[block] = (b"torn", [])
    name = h.add(PROMPT, SHORT)
    h.drain_and_check()
    assert h.cached[name, 0] == 8


def test_the_file_keeps_what_was_used_last_and_the_beginning_of_it() -> None:
    h = engine(ToyPages(6), num_pages=40)
    for book in (60, 70, 80):
        h.add([book, *PROMPT], SHORT)
        h.run()
    pages = h.stop()
    assert pages is not None
    keys = page_keys.page_keys(page_keys.root_key(None), [80, *PROMPT], 4)
    kept = [key for key, _ in pages.stored()]
    assert len(kept) == 6
    assert kept[-1] == keys[0]  # least recently used first, and a prefix after what continues it
    assert set(keys[:5]) <= set(kept)


def test_more_than_the_disk_can_take_is_not_waited_for() -> None:
    pages = ToyPages(40, max_saving=2, chance=0.0)
    h = engine(pages)
    for book in range(6):
        h.add([book + 50, *PROMPT], SHORT)
        h.run()
    h.step()
    assert sum(len(plan.saves) for plan in h.executor.plans) == 2  # and nothing of them is done
    h.drain_and_check()


def test_others_go_on_while_a_prefix_is_read() -> None:
    first = engine(ToyPages(40))
    first.add(PROMPT, SHORT)
    pages = first.stop()
    assert pages is not None
    pages._chance = 0.0
    h = engine(pages)
    h.add([9, 9, 9], SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.0))
    h.step()
    late = h.add(PROMPT, SHORT)
    young = h.add([8, 8, 8], SHORT)
    for _ in range(4):
        h.step()
    assert (late, 0) not in h.reasons
    assert (young, 0) in h.reasons  # nor is who comes later held up
    h.run()  # when nothing else is left to do, the engine waits for the disk
    assert h.cached[late, 0] == 20


def test_whoever_leaves_while_it_is_read_holds_nothing() -> None:
    first = engine(ToyPages(40))
    first.add(PROMPT, SHORT)
    pages = first.stop()
    assert pages is not None
    pages._chance = 0.0
    h = engine(pages)
    h.add([9, 9, 9], SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.0))
    h.step()
    late = h.add(PROMPT, SHORT)
    h.step()
    disk = h.core.scheduler.kv.disk
    assert isinstance(disk, DiskPrefixes)
    assert h.request(late) in disk.waiting
    h.abort(late)
    h.drain_and_check()
    assert loads(h) == 0


def test_resetting_forgets_the_disk_too() -> None:
    h = restarted(PROMPT)
    assert h.core.reset_prefix_cache()
    h.add(PROMPT, SHORT)
    h.run()
    assert loads(h) == 0
    again = restarted(PROMPT)
    again.core.reset_prefix_cache()
    left = again.stop()
    assert left is not None
    assert left.kept == {}


def test_a_failed_step_loses_its_saves_and_nothing_else() -> None:
    h = engine(ToyPages(40), num_pages=14)
    for book in range(4):
        h.add([book + 50, *PROMPT], SHORT)
        fail_once(h, "step")
        h.add([book + 50, *PROMPT], SHORT)
        h.run()
    h.drain_and_check()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=3, max_tokens=6, seed=3, ignore_eos=True),
        SamplingParams(n=2, max_tokens=6, ignore_eos=True, beam_search=BeamSearchParams(2, 6)),
    ],
    ids=["n", "beams"],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_siblings_and_beams_begin_with_it(params: SamplingParams, depth: int) -> None:
    first = engine(ToyPages(40))
    first.add(PROMPT, SHORT)
    h = engine(first.stop(), depth=depth, num_pages=30)
    h.add(PROMPT, params)
    h.drain_and_check()
    assert loads(h) == 5


def test_equal_prompts_that_arrive_together_are_read_once() -> None:
    h = restarted(PROMPT)
    for _ in range(3):
        h.add(PROMPT, SHORT)
    h.drain_and_check()
    assert loads(h) == 5


def test_random_operations_with_restarts() -> None:
    met = [h for seed in range(24) for h in drive_with_restarts(seed, 100)]
    met += [h for seed in range(8) for h in drive_with_restarts(seed, 100, encoder=True)]
    # What is checked must also have happened.
    pages = [h.page_file for h in met if h.page_file is not None]
    assert sum(loads(h) for h in met) > 30
    assert sum(file.saved for file in pages) > 500
    assert sum(file.damaged for file in pages) > 2


@pytest.mark.slow
def test_many_random_operations_with_restarts() -> None:
    met = [h for seed in range(20_000, 20_250) for h in drive_with_restarts(seed, 200)]
    assert sum(h.operations for h in met) > 100_000


# --- mistakes, made on purpose ----------------------------------------------------------------------


def load_what_was_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk_tier.Fetch, "ready", property(lambda self: True))
    patch.setattr(
        disk_tier.Fetch, "blocks", lambda self, first: [e.block for e in self.pages[first - self.first :]]
    )


def keep_what_is_damaged(patch: pytest.MonkeyPatch) -> None:
    arrived = DiskTier._arrived
    patch.setattr(DiskTier, "_arrived", lambda self, stored, good: arrived(self, stored, True))


def save_too_late(patch: pytest.MonkeyPatch) -> None:
    """A plan later the page may hold something else."""
    plan = DiskTier.next_saves

    def mutant(self: DiskTier) -> Any:
        late = self.__dict__.setdefault("late", [])
        late.append(plan(self))
        return late.pop(0) if len(late) > 1 else ()

    patch.setattr(DiskTier, "next_saves", mutant)


def name_pages_by_their_own_tokens(patch: pytest.MonkeyPatch) -> None:
    """A key that does not say what came before."""
    keys = page_keys.page_keys

    def mutant(key: bytes, tokens: Any, page_size: int) -> Any:
        ends = range(page_size, len(tokens) + 1, page_size)
        return [keys(b"", tokens[end - page_size : end], page_size)[0] for end in ends]

    for module in (disk_prefixes, prefix_cache):
        patch.setattr(module, "page_keys", mutant)


def keys_left_behind_by_a_split(patch: pytest.MonkeyPatch) -> None:
    split = prefix_cache.PrefixCache._split

    def mutant(self: Any, node: Any, count: int) -> Any:
        keys = list(node.keys)
        upper = split(self, node, count)
        node.keys = keys[: len(node.pages)]
        return upper

    patch.setattr(prefix_cache.PrefixCache, "_split", mutant)


def overwrite_what_is_being_read(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: DiskTier) -> int | None:
        if not self._free:
            stored = next((e for e in self._stored.values() if not e.saving), None)
            if stored is None:
                return None
            stored.users, users = 0, stored.users
            self._lose(stored)
            stored.users = users
        return self._free.pop() if self._free else None

    patch.setattr(DiskTier, "_take", mutant)


def forget_to_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskPrefixes, "executed", lambda self, step_id: None)


def skip_a_page(patch: pytest.MonkeyPatch) -> None:
    look = DiskTier.look
    patch.setattr(DiskTier, "look", lambda self, keys, first: look(self, keys[1:], first))


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    load_what_was_not_checked,
    keep_what_is_damaged,
    save_too_late,
    name_pages_by_their_own_tokens,
    keys_left_behind_by_a_split,
    overwrite_what_is_being_read,
    forget_to_release,
    skip_a_page,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_mutant_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    must_be_noticed(lambda seed: drive_with_restarts(seed, 100), 120)


def ignore_the_salt(patch: pytest.MonkeyPatch) -> None:
    root = page_keys.root_key
    for module in (disk_prefixes, prefix_cache):
        patch.setattr(module, "root_key", lambda salt: root(None))


def wait_alone(patch: pytest.MonkeyPatch) -> None:
    """The engine stops for the disk."""
    ready = DiskPrefixes.ready

    def mutant(self: DiskPrefixes, request: Request) -> bool:
        if not ready(self, request):
            self.settle()
        return ready(self, request)

    patch.setattr(DiskPrefixes, "ready", mutant)


def keep_after_a_reset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskTier, "clear", lambda self: None)


@pytest.mark.parametrize(
    ("mutate", "test"),
    [
        (ignore_the_salt, test_only_the_same_salt_finds_it),
        (wait_alone, test_others_go_on_while_a_prefix_is_read),
        (keep_after_a_reset, test_resetting_forgets_the_disk_too),
    ],
    ids=lambda value: value.__name__,
)
def test_the_rules_own_test_catches_it(
    mutate: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError)):
        test()
