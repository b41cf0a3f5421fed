"""Typical mistakes, made on purpose: the random driver must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine import test_kv_manager, test_prefix_cache, test_queue_order, test_scheduler
from octavo.engine import admission, kv_manager, sources
from octavo.engine.admission import PrefixesInProgress, QueueOrder
from octavo.engine.beams import BeamGroup
from octavo.engine.drafts import Drafts
from octavo.engine.kv_manager import KVManager
from octavo.engine.page_pool import IntegrityError, PagePool
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import ALONE, Request
from octavo.engine.scheduler import Scheduler
from octavo.engine.sources import Start, SwapSpace
from octavo.engine.step_builder import StepBuilder
from support.mutants import must_be_noticed
from support.page_mutants import (
    Patch,
    evict_what_is_locked,
    fork_without_counting,
    fork_without_locking,
    keep_the_page_that_was_copied,
    publish_what_a_sibling_holds,
    write_to_a_shared_page,
)
from support.random_driver import drive
from support.toy_executor import PlanError

SEEDS, OPERATIONS = 60, 250


def free_twice(patch: pytest.MonkeyPatch) -> None:
    release = KVManager.release

    def mutant(self: KVManager, request: Request, publish: bool = True) -> None:
        table = request.kv.page_table[-1:]
        release(self, request, publish)
        self.pool.release(table)

    patch.setattr(KVManager, "release", mutant)


def leak_on_abort(patch: pytest.MonkeyPatch) -> None:
    release = KVManager.release

    def mutant(self: KVManager, request: Request, publish: bool = True) -> None:
        if request.finish_reason == "abort":
            self.pool.retain(request.kv.page_table[:1])
        release(self, request, publish)

    patch.setattr(KVManager, "release", mutant)


def pages_off_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "pages_for", lambda self, tokens: tokens // self.page_size)


def a_page_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "pages_for", lambda self, tokens: tokens // self.page_size + 1)


def cache_a_partial_page(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: KVManager, request: Request) -> int:
        full = -(-request.kv.num_computed_tokens // self.page_size)
        return min(full, len(request.token_ids) // self.page_size)

    patch.setattr(KVManager, "_full_pages", mutant)


def cache_what_is_only_scheduled(patch: pytest.MonkeyPatch) -> None:
    """Tokens in flight and drafts that were not verified."""

    def mutant(self: KVManager, request: Request) -> int:
        return min(request.kv.num_scheduled_tokens, len(request.token_ids)) // self.page_size

    patch.setattr(KVManager, "_full_pages", mutant)


def count_rejected_drafts(patch: pytest.MonkeyPatch) -> None:
    confirm = Drafts.confirm

    def mutant(self: Drafts, request: Request, step: Any, emitted: int, kv: KVManager) -> None:
        confirm(self, request, step, emitted, kv)
        request.kv.num_computed_tokens = request.kv.num_scheduled_tokens = step.start + step.count

    patch.setattr(Drafts, "confirm", mutant)


def cache_tokens_beyond_a_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "_full_pages", lambda self, r: r.kv.num_computed_tokens // self.page_size)


def forget_to_unlock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "unlock", lambda self, node: None)


def lock_only_the_last_node(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: PrefixCache, node: Any) -> None:
        self.num_evictable -= 0 if node.locks else len(node.pages)
        node.locks += 1

    patch.setattr(PrefixCache, "lock", mutant)


def a_split_loses_its_locks(patch: pytest.MonkeyPatch) -> None:
    split = PrefixCache._split

    def mutant(self: PrefixCache, node: Any, at: int) -> Any:
        upper = split(self, node, at)
        upper.locks = 0
        return upper

    patch.setattr(PrefixCache, "_split", mutant)


def match_a_page_too_many(patch: pytest.MonkeyPatch) -> None:
    """An edge counts as matched whole although it agrees only at its beginning."""
    patch.setattr(PrefixCache, "_common_pages", lambda self, node, tokens, at: len(node.pages))


def recompute_nothing_after_a_full_hit(patch: pytest.MonkeyPatch) -> None:
    def mutant(kv: KVManager, request: Request) -> Start:
        if not kv.caching:
            return sources.start_without_tree(kv, request)
        return sources._continued(kv, request, *kv.cache.match(request.token_ids, request.cache_key))

    patch.setattr(kv_manager, "find_start", mutant)


def publish_without_retaining(patch: pytest.MonkeyPatch) -> None:
    insert = PrefixCache.insert

    def mutant(self: PrefixCache, node: Any, tokens: Any, pages: Any) -> Any:
        before = {page for n in self.nodes() for page in n.pages}
        end = insert(self, node, tokens, pages)
        self._pool.release([page for n in self.nodes() for page in n.pages if page not in before])
        return end

    patch.setattr(PrefixCache, "insert", mutant)


def lock_a_copy_that_is_not_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "holds_next", lambda self, node, tokens: False)


def give_a_row_twice(patch: pytest.MonkeyPatch) -> None:
    leave = Scheduler._leave

    def mutant(self: Scheduler, request: Request, publish: bool = True) -> None:
        row = request.row
        leave(self, request, publish)
        if len(self.running) == 1:
            self._free_rows.append(row)

    patch.setattr(Scheduler, "_leave", mutant)


def do_not_tell_freed_rows(patch: pytest.MonkeyPatch) -> None:
    build = StepBuilder.build
    patch.setattr(
        StepBuilder, "build", lambda self, step_id, freed, saves: build(self, step_id, freed[1:], saves)
    )


def keep_the_victims_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepBuilder, "withdraw", lambda self, request: None)


def plan_past_the_end(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Request) -> int:
        return len(self.token_ids) + self.num_in_flight - self.kv.num_scheduled_tokens

    patch.setattr(Request, "num_uncomputed", mutant)


def keep_tokens_after_the_stop(patch: pytest.MonkeyPatch) -> None:
    append = Request.append

    def mutant(self: Request, tokens: Any) -> Any:
        append(self, tokens)
        return tokens

    patch.setattr(Request, "append", mutant)


def stop_before_min_tokens(patch: pytest.MonkeyPatch) -> None:
    """min_tokens are enforced by the sampler as well; here only the engine's length limit slips."""
    append = Request.append

    def mutant(self: Request, tokens: Any) -> Any:
        self.max_total_tokens -= 1 if len(self.token_ids) > self.num_prompt_tokens + 3 else 0
        return append(self, tokens)

    patch.setattr(Request, "append", mutant)


def pool_shares_free_pages(patch: pytest.MonkeyPatch) -> None:
    allocate = PagePool.allocate

    def mutant(self: PagePool, number: int) -> list[int]:
        pages = allocate(self, number)
        return [*pages[:-1], pages[0]] if len(pages) > 1 else pages

    patch.setattr(PagePool, "allocate", mutant)


def forget_the_copy(patch: pytest.MonkeyPatch) -> None:
    build = StepBuilder.build

    def mutant(self: StepBuilder, step_id: int, freed: Any, saves: Any) -> Any:
        self._copies.clear()
        return build(self, step_id, freed, saves)

    patch.setattr(StepBuilder, "build", mutant)


def share_what_the_leader_has_not_computed(patch: pytest.MonkeyPatch) -> None:
    def mutant(kv: KVManager, request: Request, pages: list[int]) -> int:
        leader = request.leader
        if leader is None or not leader.kv.page_table:
            return 0
        return min(leader.kv.num_scheduled_tokens, request.num_prompt_tokens - 1)

    patch.setattr(sources, "shared_with_leader", mutant)
    patch.setattr(PrefixesInProgress, "worth_waiting", lambda self, request: False)


def forget_beams_that_were_preempted(patch: pytest.MonkeyPatch) -> None:
    suspend = BeamGroup.suspend

    def mutant(self: BeamGroup) -> None:
        suspend(self)
        self._suspended = self._suspended[:1]

    patch.setattr(BeamGroup, "suspend", mutant)


def plan_a_beam_past_its_choice(patch: pytest.MonkeyPatch) -> None:
    num_uncomputed = Request.num_uncomputed

    def mutant(self: Request) -> int:
        group, self.group = self.group, ALONE
        try:
            return num_uncomputed(self)
        finally:
            self.group = group

    patch.setattr(Request, "num_uncomputed", mutant)


def continue_the_wrong_beam(patch: pytest.MonkeyPatch) -> None:
    regroup = KVManager.regroup

    def mutant(self: KVManager, members: Any, parents: Any, gone: Any) -> None:
        regroup(self, members, parents[::-1], gone)

    patch.setattr(KVManager, "regroup", mutant)


def swap_what_is_only_scheduled(patch: pytest.MonkeyPatch) -> None:
    swap_out = KVManager.swap_out

    def mutant(self: KVManager, request: Request) -> Any:
        pairs = swap_out(self, request)
        if pairs and request.num_in_flight == 0:
            request.kv.num_swapped_tokens = min(request.kv.num_swapped_tokens + 1, len(request.token_ids) - 1)
        return pairs

    patch.setattr(KVManager, "swap_out", mutant)


def copy_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """From the swap space or from the disk."""
    begin = KVManager._begin

    def mutant(self: KVManager, request: Request, begun: Start, reserve: int) -> bool:
        begun.back = begun.back[::-1]
        return begin(self, request, begun, reserve)

    patch.setattr(KVManager, "_begin", mutant)


def keep_the_slots_of_the_aborted(patch: pytest.MonkeyPatch) -> None:
    forget = SwapSpace.forget

    def mutant(self: SwapSpace, request: Request) -> None:
        if request.finish_reason == "abort":
            request.kv.swapped = []
        forget(self, request)

    patch.setattr(SwapSpace, "forget", mutant)


def preempt_a_single_beam(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BeamGroup, "together", lambda self, request: (request,))


MUTANTS: tuple[Patch, ...] = (
    write_to_a_shared_page,
    forget_the_copy,
    keep_the_page_that_was_copied,
    share_what_the_leader_has_not_computed,
    fork_without_counting,
    fork_without_locking,
    forget_beams_that_were_preempted,
    plan_a_beam_past_its_choice,
    continue_the_wrong_beam,
    preempt_a_single_beam,
    swap_what_is_only_scheduled,
    copy_in_the_wrong_order,
    keep_the_slots_of_the_aborted,
    free_twice,
    leak_on_abort,
    pages_off_by_one,
    a_page_too_many,
    cache_a_partial_page,
    count_rejected_drafts,
    cache_tokens_beyond_a_stop,
    forget_to_unlock,
    lock_only_the_last_node,
    evict_what_is_locked,
    a_split_loses_its_locks,
    match_a_page_too_many,
    recompute_nothing_after_a_full_hit,
    publish_without_retaining,
    lock_a_copy_that_is_not_used,
    give_a_row_twice,
    do_not_tell_freed_rows,
    plan_past_the_end,
    keep_tokens_after_the_stop,
    stop_before_min_tokens,
    pool_shares_free_pages,
)


NATURAL_DEATHS: dict[Patch, tuple[type[Exception], ...]] = {
    forget_beams_that_were_preempted: (ValueError,),  # beams.assign_tables zips members and beams, strictly
}
"""Mistakes that no check can meet, because they end in an error before."""


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_mutant_is_caught(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    must_be_noticed(lambda seed: drive(seed, OPERATIONS), SEEDS, NATURAL_DEATHS.get(mutate, ()))


# --- mistakes that corrupt nothing: the test of the broken rule finds them ---------------------------


def ignore_the_salt(patch: pytest.MonkeyPatch) -> None:
    match = PrefixCache.match
    patch.setattr(PrefixCache, "match", lambda self, tokens, salt=None: match(self, tokens, None))


def preempt_the_oldest(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Scheduler, request: Request, num_tokens: int, step: StepBuilder) -> Any:
        while (growth := self.kv.grow(request, num_tokens)) is None:
            victim = self.running[0]
            step.preempted = True
            self._preempt(victim, step)
            if victim is request:
                return None
        return growth

    patch.setattr(Scheduler, "_grow", mutant)


def never_wait_to_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixesInProgress, "worth_waiting", lambda self, request: False)


def prompts_before_decodes(patch: pytest.MonkeyPatch) -> None:
    go_on = Scheduler._continue
    held: list[Any] = []

    def mutant(self: Scheduler, requests: list[Any], step: StepBuilder) -> None:
        held.append(requests)
        if len(held) == 2:
            decodes, prefills = held
            held.clear()
            go_on(self, prefills, step)
            go_on(self, decodes, step)

    patch.setattr(Scheduler, "_continue", mutant)


def let_small_ones_overtake(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "add", lambda self, r: self.waiting.insert(0, r))


def evict_the_newest(patch: pytest.MonkeyPatch) -> None:
    evict = PrefixCache.evict

    def mutant(self: PrefixCache, number: int) -> int:
        self._lru = [(-stamp, n, leaf) for stamp, n, leaf in self._lru]
        self._lru.sort()
        patch.setattr(
            PrefixCache,
            "_is_current",
            staticmethod(lambda node, stamp: not node.locks and not node.children and bool(node.parent)),
        )
        return evict(self, number)

    patch.setattr(PrefixCache, "evict", mutant)


def admit_without_reserve(patch: pytest.MonkeyPatch) -> None:
    begin = KVManager.begin
    patch.setattr(KVManager, "begin", lambda self, request, reserve: begin(self, request, 0))


def compare_no_prefixes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueOrder, "_by_prefix", lambda self, waiting: list(waiting))


def let_newcomers_pass_the_preempted(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: QueueOrder, waiting: Any) -> Any:
        return sorted(waiting, key=lambda request: -self._kv.cached_tokens(request))

    patch.setattr(QueueOrder, "_by_prefix", mutant)


def compare_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "PREFIX_WINDOW", 10**9)


def prefixes_before_priorities(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: QueueOrder, waiting: Any) -> Any:
        return sorted(waiting, key=lambda request: -self._kv.cached_tokens(request))

    patch.setattr(QueueOrder, "_by_prefix", mutant)


def no_share_for_the_oldest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueOrder, "_oldest", lambda self, waiting, running: iter(()))


def a_share_one_too_late(patch: pytest.MonkeyPatch) -> None:
    init = QueueOrder.__init__
    patch.setattr(
        QueueOrder,
        "__init__",
        lambda self, config, kv: init(self, replace(config, fair_share=config.fair_share + 1), kv),
    )


def share_without_precedence(patch: pytest.MonkeyPatch) -> None:
    """It enters, and is preempted for the next urgent one."""
    oldest = QueueOrder._oldest

    def mutant(self: QueueOrder, waiting: Any, running: Any) -> Any:
        orders = {request: request.order for request in waiting}
        yield from oldest(self, waiting, running)
        for request, order in orders.items():
            request.order = order

    patch.setattr(QueueOrder, "_oldest", mutant)


@pytest.mark.parametrize(
    ("mutate", "test"),
    [
        (ignore_the_salt, test_kv_manager.test_salts_and_switched_off_caching_share_nothing),
        (
            preempt_the_oldest,
            test_scheduler.test_the_youngest_is_preempted_and_resumes_from_the_cache_in_its_old_place,
        ),
        (
            never_wait_to_share,
            test_scheduler.test_equal_prompts_that_arrive_together_cost_one_prefill_even_in_chunks,
        ),
        (prompts_before_decodes, test_scheduler.test_decodes_come_before_prompts_and_older_before_younger),
        (let_small_ones_overtake, test_scheduler.test_waiting_requests_enter_in_order_of_arrival),
        (
            publish_what_a_sibling_holds,
            test_kv_manager.test_what_siblings_hold_enters_the_tree_with_its_last_holder,
        ),
        (evict_the_newest, test_prefix_cache.test_least_recently_used_goes_first_from_its_end),
        (admit_without_reserve, test_scheduler.test_a_newcomer_leaves_a_page_for_everybody_who_runs),
        (
            compare_no_prefixes,
            lambda: test_queue_order.test_the_longest_cached_prefix_goes_first_if_so_asked("lpm"),
        ),
        (
            let_newcomers_pass_the_preempted,
            test_queue_order.test_preempted_ones_resume_before_longer_prefixes_enter,
        ),
        (cache_what_is_only_scheduled, test_scheduler.test_nothing_is_cached_before_a_result_confirms_it),
        (keep_the_victims_step, test_scheduler.test_a_victim_that_was_in_the_step_is_taken_out_again),
        (compare_everybody, test_queue_order.test_only_the_first_are_compared),
        (prefixes_before_priorities, test_queue_order.test_priority_comes_before_prefix),
        (no_share_for_the_oldest, lambda: test_queue_order.test_prefixes_do_not_starve_the_oldest(3)),
        (
            a_share_one_too_late,
            lambda: test_queue_order.test_a_flood_of_urgent_ones_leaves_the_others_a_share(5),
        ),
        (
            share_without_precedence,
            test_queue_order.test_who_has_waited_long_is_not_preempted_for_the_urgent,
        ),
    ],
    ids=lambda value: value.__name__,
)
def test_the_rules_own_test_catches_it(
    mutate: Patch, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test()
    mutate(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError, PlanError)):
        test()
