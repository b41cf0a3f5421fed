"""Drafts are optional: with them nobody gets less, enters later or is preempted earlier than without."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import SchedulerConfig
from octavo.engine.drafts import Drafts, in_turns
from octavo.engine.kv_manager import KVManager
from octavo.engine.page_pool import IntegrityError
from octavo.engine.request import Request, RequestUpdate
from octavo.engine.scheduler import Scheduler
from octavo.engine.step_builder import StepBuilder
from octavo.engine.step_plan import StepResult
from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from support.engine_harness import Harness
from support.random_driver import Propose, oracle_drafts, random_harness, random_params, random_prompt
from support.toy_executor import PlanError, Toy, fingerprints

GREEDY = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.0)
STEPS = 60
ARRIVALS = 12


def wrong_drafts(length: int) -> Propose:
    """Drafts of which none is ever accepted, where requests are greedy."""

    def propose(tokens: Sequence[int], seed: int) -> Sequence[int]:
        right = Toy().next_token(fingerprints(tokens)[-1], seed, 0, GREEDY, False)
        return [(right + 7 + place) % 64 for place in range(length)]  # (stop tokens may shift it by 2)

    return propose


def some_drafts(length: int) -> Propose:
    """Right ones, wrong ones, short ones and none at all, as chance, which is the row's own, has it."""
    oracle = oracle_drafts(64, length)

    def propose(tokens: Sequence[int], seed: int) -> Sequence[int]:
        rng = random.Random(hash(tuple(tokens)))
        return oracle(tokens, seed)[: rng.choice((0, 1, length))]

    return propose


class Side:
    """One of two engines that are given the same requests at the same times.

    Args:
        sharing: there are siblings, which wait for each other, and urgent requests, which overtake others.
    """

    def __init__(self, seed: int, propose: Propose | None, sharing: bool = True, **changes: Any) -> None:
        options = random_harness(random.Random(seed)).options
        self.h = Harness(**{**options, "vocab_size": 64, "max_waiting": 99, "propose": propose, **changes})
        self._rng, self._sharing = random.Random(seed), sharing
        self._plan = sorted(self._rng.choices(range(STEPS // 2), k=ARRIVALS))
        if self._rng.random() < 0.5:
            self.h.scheduler.growth_pages = 0  # reckless, so that preemption happens in every possible place
        self.generated: list[dict[tuple[str, int], int]] = []
        self.entered: dict[str, int] = {}
        self.preempted: list[int] = []

    def run(self) -> Side:
        limit, alone = self.h.config.max_model_len - 1, {} if self._sharing else {"n": 1}
        for step in range(STEPS):
            for _ in range(self._plan.count(step)):
                params = random_params(self._rng).replace(temperature=0.0, ignore_eos=True, **alone)
                urgency = self._rng.choice((0, 0, 1)) if self._sharing else 0
                self.h.add(random_prompt(self._rng, limit), params, priority=urgency)
            if self.h.core.has_unfinished():
                self.h.step()
            self.generated.append({key: len(tokens) for key, tokens in self.h.tokens.items()})
            self.preempted.append(self.h.scheduler.num_preemptions)
        for number, plan in enumerate(self.h.executor.plans):
            for new in plan.new_rows:
                self.entered.setdefault(new.request_id, number)
        return self

    @property
    def drafts(self) -> int:
        return sum(len(s.drafts) for plan in self.h.executor.plans for s in plan.steps)


def drop_all_drafts(scheduler: Scheduler) -> None:
    """It is told of drafts and waits for them, and verifies none."""
    scheduler.drafts.propose = lambda request, result, row: None  # type: ignore[method-assign]


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_that_are_rejected_change_nothing(depth: int) -> None:
    """Step by step the same rows, tokens, entries and preemptions, however tight the pool is.

    With two steps in flight the other engine waits for drafts, too: what is known earlier lets somebody
    enter earlier, and that is no wrong.
    """
    drafts = preempted = 0
    for seed in range(60):
        propose = wrong_drafts(1 + seed % 7)
        plain, drafted = (
            Side(seed, None if depth == 1 else propose, depth=depth),
            Side(seed, propose, depth=depth),
        )
        plain.h.kv.spare = drafted.h.kv.spare = seed % 3
        drop_all_drafts(plain.h.scheduler)
        plain.run()
        drafted.run()
        assert drafted.generated == plain.generated, seed
        assert drafted.entered == plain.entered, seed
        assert drafted.preempted == plain.preempted, seed
        for one, other in zip(plain.h.executor.plans, drafted.h.executor.plans, strict=True):
            mine = [(s.row, s.start, s.count, s.sample) for s in one.steps]
            assert [(s.row, s.start, s.count - len(s.drafts), s.sample) for s in other.steps] == mine
            assert other.num_tokens <= drafted.h.config.max_num_batched_tokens
            assert [n.row for n in one.new_rows] == [n.row for n in other.new_rows]
        hits = [side.h.kv.cache.hit_tokens for side in (plain, drafted)]
        assert hits[0] == hits[1], "something was evicted for a draft"
        drafts, preempted = drafts + drafted.drafts, preempted + plain.preempted[-1]
    assert drafts > 2000
    assert preempted > 20


@pytest.mark.parametrize("depth", [1, 2])
def test_the_short_way_plans_what_the_long_one_plans(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all drafts fit into pages that their rows have, or one row's are free, no plan is built piece by
    piece."""
    joined: list[int] = []
    grown: list[bool] = []
    join, drafted = Drafts.join, 0

    def counted(self: Drafts, flight: Any, kv: KVManager) -> None:
        joined.append(len(self.waiting))
        join(self, flight, kv)
        grown.append(any(step.pages for step in flight.plan.steps))

    monkeypatch.setattr(Drafts, "join", counted)
    for seed in range(40):
        options: dict[str, Any] = {"depth": depth, "max_sampled_rows": (0, 8)[seed % 2]}
        short = Side(seed, some_drafts(1 + seed % 5), **options).run()
        with monkeypatch.context() as patch:
            patch.setattr(Drafts, "fits", lambda *_: False)
            long = Side(seed, some_drafts(1 + seed % 5), **options).run()
        assert short.h.executor.plans == long.h.executor.plans, seed
        drafted += sum(any(step.drafts for step in plan.steps) for plan in short.h.executor.plans)
    assert 20 < len(joined) < drafted
    assert 20 < sum(grown) < len(joined)


ROOMY: dict[str, Any] = {
    "num_pages": 300,
    "sharing": False,
    "enable_prefix_caching": False,
    "scheduling_policy": "fcfs",
}
"""Who is faster needs its pages earlier. And nobody waits for another one or overtakes it: what is planned
when more is known changes who enters first."""


@pytest.mark.parametrize("proposer", [wrong_drafts, some_drafts, partial(oracle_drafts, 64)])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_row_has_at_least_as_many_tokens_as_without(
    depth: int, proposer: Callable[[int], Propose]
) -> None:
    """After each step, beside an engine without drafts that plans as many steps ahead."""
    drafts = ahead = 0
    for seed in range(40):
        plain = Side(seed, None, depth=depth, **ROOMY).run()
        drafted = Side(seed, proposer(1 + seed % 5), depth=depth, **ROOMY).run()
        for step, (mine, theirs) in enumerate(zip(plain.generated, drafted.generated, strict=True)):
            assert all(theirs[key] >= count for key, count in mine.items()), (seed, step)
            ahead += any(theirs[key] > count for key, count in mine.items())
        late = [name for name, step in drafted.entered.items() if step > plain.entered.get(name, STEPS)]
        assert not late, seed
        assert drafted.preempted[-1] == plain.preempted[-1] == 0
        drafts += drafted.drafts
    assert drafts > 500
    assert ahead > 300 or proposer is wrong_drafts


@pytest.mark.parametrize("depth", [1, 2])
def test_thirty_two_rows_lose_nothing_by_five_wrong_drafts_each(depth: int) -> None:
    """After each step as many tokens, and who comes later enters as soon, in a pool that is too small."""

    def crowd(drop: bool) -> tuple[list[list[int]], int, dict[str, int], int]:
        h = Harness(
            num_pages=200, max_num_seqs=32, max_num_batched_tokens=99, max_waiting=99, depth=depth,
            propose=wrong_drafts(5),
        )  # fmt: skip
        if drop:
            drop_all_drafts(h.scheduler)
        h.scheduler.growth_pages = 0
        names, generated = [h.add([1, 2, 3, 4 + i], GREEDY) for i in range(30)], []
        for step in range(STEPS):
            if step % 7 == 3:
                names.append(h.add(range(10, 30 + step % 4), GREEDY.replace(max_tokens=9)))
            h.step()
            generated.append([len(h.tokens[name, 0]) for name in names])
        plans = h.executor.plans
        entered = {new.request_id: at for at, plan in enumerate(plans) for new in plan.new_rows}
        drafts = sum(len(step.drafts) for plan in plans for step in plan.steps)
        return generated, h.scheduler.num_preemptions, entered, drafts

    plain, drafted = crowd(True), crowd(False)
    assert drafted[:3] == plain[:3]
    assert plain[1] > 0, "nobody was preempted, so nothing was shown"
    assert drafted[3] > 1000
    assert plain[3] == 0


def test_what_was_verified_is_counted() -> None:
    """By row and step, by place, and in what is said of each request."""
    h = Harness(num_pages=40, propose=oracle_drafts(64, 4))
    updates = []
    h.add([1, 2, 3, 4, 5], GREEDY)
    while h.core.has_unfinished():
        updates += h.step()
    steps = [step for plan in h.executor.plans for step in plan.steps if step.drafts]
    counts = h.core.stats().drafts
    assert counts.drafts == len(steps)
    assert counts.draft_tokens == sum(len(step.drafts) for step in steps)
    assert counts.accepted_tokens == 30 - len(h.executor.plans) == sum(counts.accepted_at)
    assert counts.accepted_at == sorted(counts.accepted_at, reverse=True)
    assert sum(update.accepted for update in updates) == counts.accepted_tokens > 5
    assert sum(update.drafted for update in updates) == counts.draft_tokens > counts.accepted_tokens + 5


def test_what_lies_behind_a_stop_token_was_drafted_in_vain() -> None:
    """Wherever it ends: of a draft that is right as a whole, the answer's own tokens were accepted."""

    def right(tokens: Sequence[int], seed: int) -> Sequence[int]:
        known = list(tokens)
        for _ in range(8):
            known.append(Toy().next_token(fingerprints(known)[-1], seed, 0, GREEDY, False))
        return known[len(tokens) :]

    def answered(params: SamplingParams) -> tuple[list[int], Harness, list[RequestUpdate]]:
        h, updates = Harness(num_pages=40, propose=right), list[RequestUpdate]()
        h.add([1, 2, 3, 4, 5], params)
        while h.core.has_unfinished():
            updates += h.step()
        return [token.token_id for update in updates for token in update.tokens], h, updates

    whole, _, _ = answered(GREEDY)
    behind = 0
    for place in range(3, 24):
        stopping = GREEDY.replace(stop_token_ids=[whole[place]])
        tokens, h, updates = answered(stopping)
        assert tokens == whole[: whole.index(whole[place]) + 1]
        counts = h.core.stats().drafts
        accepted = sum(update.accepted for update in updates)
        assert counts.accepted_tokens == accepted == sum(counts.accepted_at) <= len(tokens) - 1
        assert h.core.stats().generated_tokens == len(tokens)
        behind += counts.draft_tokens > accepted
    assert behind > 10


# --- how it is done -----------------------------------------------------------------------------------


def test_one_token_for_everybody_comes_before_drafts() -> None:
    """32 rows, a budget of 99: drafts share what 32 tokens leave, and newcomers come before them."""
    h = Harness(
        num_pages=400, max_num_seqs=32, max_num_batched_tokens=99, max_waiting=99, propose=wrong_drafts(5)
    )
    names = [h.add([1, 2, 3, 4 + i], GREEDY) for i in range(32)]
    for _ in range(20):
        h.step()
    assert min(len(h.tokens[name, 0]) for name in names) >= 19
    last = h.executor.plans[-1]
    assert last.num_tokens == 99
    assert {len(step.drafts) for step in last.steps} == {2, 3}


def test_the_turns_begin_with_another_row_each_time() -> None:
    h = Harness(num_pages=40, max_num_seqs=3, max_num_batched_tokens=4, propose=wrong_drafts(3))
    for i in range(3):
        h.add([1 + i], GREEDY)
    while len(h.executor.plans) < 12:
        h.step()
    drafted = [[s.row for s in plan.steps if s.drafts] for plan in h.executor.plans[3:]]
    assert all(len(rows) == 1 for rows in drafted)
    assert {tuple(rows) for rows in drafted} == {(0,), (1,), (2,)}


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(-2, 40))
def test_turns_are_fair(wanted: list[int], total: int) -> None:
    given = in_turns(wanted, total)
    assert sum(given) == min(max(total, 0), sum(wanted))
    assert all(got <= most for got, most in zip(given, wanted, strict=True))
    unmet = [got for got, most in zip(given, wanted, strict=True) if got < most]
    assert not unmet or max(given) <= min(unmet) + 1


def test_a_prompt_and_a_newcomer_come_before_drafts() -> None:
    h = Harness(num_pages=60, max_num_batched_tokens=8, propose=wrong_drafts(4))
    h.add([1, 2], GREEDY)
    h.step()
    h.add(list(range(10, 24)), GREEDY)  # two steps: 7 and 7
    for _ in range(2):
        h.step()
        assert [(s.count, len(s.drafts)) for s in h.executor.plans[-1].steps] == [(1, 0), (7, 0)]
    h.step()
    assert [s.count for s in h.executor.plans[-1].steps] == [4, 4]


def test_no_cached_prefix_is_evicted_and_no_page_kept_for_a_draft() -> None:
    h = Harness(num_pages=10, page_size=1, max_model_len=10, propose=wrong_drafts(6))
    h.add([9, 8, 7, 6, 5], GREEDY.replace(max_tokens=1))
    h.run()
    assert h.kv.cache.num_pages == 5
    h.add([1, 2], GREEDY.replace(max_tokens=3))
    h.step()
    h.step()  # 3 pages of its own; of 5 pages that are left only 2 are free
    assert [len(s.drafts) for s in h.executor.plans[-1].steps] == [1]  # max_tokens allows no more
    h.run()
    assert h.kv.cache.num_pages >= 5
    h = Harness(num_pages=10, page_size=1, max_model_len=10, propose=wrong_drafts(6))
    h.add([9, 8, 7, 6, 5], GREEDY.replace(max_tokens=1))
    h.run()
    h.add([1, 2], GREEDY)
    h.step()
    h.step()
    assert [len(s.drafts) for s in h.executor.plans[-1].steps] == [2]  # 5 cached, 3 in use, 2 are free
    assert h.kv.cache.num_pages == 5 + 2
    assert h.kv.pool.num_free == 2, "what held rejected drafts is free again"
    h.drain_and_check()


@pytest.mark.parametrize(("spare", "least", "most"), [(0, 0.0, 0.75), (2, 0.95, 1.0)])
def test_spare_pages_are_for_drafts_where_the_cache_fills_the_pool(
    spare: int, least: float, most: float
) -> None:
    """Without them a draft has the room that is left in its row's last page."""
    h = Harness(num_pages=40, page_size=4, max_model_len=100, propose=wrong_drafts(4))
    h.kv.spare = spare
    for start in range(10, 60, 5):
        h.add(range(start, start + 16), GREEDY.replace(max_tokens=1))
    h.run()
    assert h.kv.pool.num_free <= 4, "the cache fills the pool"
    first = len(h.executor.plans) + 5
    h.add([1, 2, 3], GREEDY.replace(max_tokens=60))
    h.run()
    drafts = [len(s.drafts) for plan in h.executor.plans[first:-5] for s in plan.steps]
    assert len(drafts) > 40
    assert least <= sum(drafts) / (4 * len(drafts)) <= most
    assert h.kv.cache.num_pages + h.kv.pool.num_free == 40, "what nobody needs is cached"


def test_the_executor_is_not_asked_for_more_samples_than_it_can_draw() -> None:
    h = Harness(num_pages=60, max_num_batched_tokens=64, max_sampled_rows=6, propose=wrong_drafts(5))
    for i in range(4):
        h.add([1 + i, 2], GREEDY)
    h.drain_and_check()
    sampled = [sum(s.sample + len(s.drafts) for s in plan.steps) for plan in h.executor.plans]
    assert max(sampled) == 6
    with pytest.raises(InvalidRequestError, match="max_sampled_rows 3 is below max_num_seqs 4"):
        SchedulerConfig(num_pages=99, max_model_len=64, max_num_seqs=4, max_sampled_rows=3)


def test_while_drafts_come_a_step_is_planned_when_the_one_before_it_is_known() -> None:
    """The first ones are overtaken by the step in flight; from then on each step verifies some."""
    h = Harness(num_pages=40, depth=2, propose=oracle_drafts(64, 4))
    name = h.add([1, 2, 3, 4, 5], GREEDY)
    in_flight = []
    while h.core.has_unfinished():
        h.step()
        in_flight.append(len(h.scheduler._in_flight))
    assert h.tokens[name, 0] == h.expected(name)
    drafts = [[len(s.drafts) for s in plan.steps] for plan in h.executor.plans]
    assert drafts[:2] == [[0], [0]]
    assert all(count > [0] for count in drafts[2:-1])
    assert in_flight == [1, *[0] * (len(in_flight) - 1)]
    assert len(h.executor.plans) < 20, "of 30 tokens"


def test_two_steps_are_in_flight_again_when_no_more_drafts_come() -> None:
    def at_first(tokens: Sequence[int], seed: int) -> Sequence[int]:
        return [1, 2] if len(tokens) < 12 else []

    h = Harness(num_pages=40, depth=2, propose=at_first)
    h.add([1, 2, 3, 4, 5], GREEDY)
    in_flight = []
    while h.core.has_unfinished():
        h.step()
        in_flight.append(len(h.scheduler._in_flight))
    assert 0 in in_flight[:8]
    assert in_flight[10:20] == [1] * 10  # and the one that this step has answered


def test_a_failed_step_with_drafts_is_done_again() -> None:
    h = Harness(num_pages=40, propose=oracle_drafts(64, 3), depth=2)
    first = h.add([1, 2, 3], GREEDY)
    while not any(s.drafts for s in h.executor.plans[-1].steps) if h.executor.plans else True:
        h.step()
    failures = [RuntimeError("broken")]
    h.executor.fail_step = lambda plan: failures.pop() if failures else None
    while (first, 0) not in h.reasons:
        h.step()
    assert h.reasons[first, 0] == "length"
    assert not failures
    second = h.add([4, 5, 6], GREEDY)
    h.drain_and_check()
    assert h.reasons[second, 0] == "length"


# --- mistakes, made on purpose ------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def drafts_before_other_rows(patch: pytest.MonkeyPatch) -> None:
    """They take their part of the budget before prompts and newcomers do."""
    go_on = Scheduler._continue

    def mutant(self: Scheduler, requests: list[Any], step: StepBuilder) -> None:
        go_on(self, requests, step)
        self.drafts.verify(step, self.kv, self._next_step)

    patch.setattr(Scheduler, "_continue", mutant)


def evict_for_drafts(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: KVManager, request: Request, num_tokens: int) -> tuple[int, ...]:
        growth = self.grow(request, num_tokens)
        return () if growth is None else growth.pages

    patch.setattr(KVManager, "grow_if_free", mutant)


def preempt_for_drafts(patch: pytest.MonkeyPatch) -> None:
    any_step = Scheduler._any_step

    def mutant(self: Scheduler, now: float) -> Any:
        def verify(step: StepBuilder, kv: KVManager, first: int) -> None:
            wanted = sum(len(tokens) for tokens, _ in self.drafts.waiting.values())
            if len(self.running) > 1 and kv.pool.num_free < wanted // kv.page_size:
                self._preempt(self.running[-1], step)
            Drafts.verify(self.drafts, step, kv, first)

        self.drafts.verify = verify  # type: ignore[method-assign]
        return any_step(self, now)

    patch.setattr(Scheduler, "_any_step", mutant)


def keep_the_pages_of_rejected_drafts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "trim", lambda self, request: None)


def plan_while_drafts_are_verified(patch: pytest.MonkeyPatch) -> None:
    schedule = Scheduler.schedule

    def mutant(self: Scheduler, now: float = 0.0) -> Any:
        self._proposing = False
        return schedule(self, now)

    patch.setattr(Scheduler, "schedule", mutant)


def drafts_of_an_overtaken_row(patch: pytest.MonkeyPatch) -> None:
    """They are kept although a step in flight goes on from them."""
    update = Scheduler.update

    def mutant(self: Scheduler, result: StepResult, now: float = 0.0, duration_s: float = 0.0) -> Any:
        flight = self._in_flight[0]
        news = update(self, result, now, duration_s)
        for request, step in zip(flight.requests, flight.plan.steps, strict=True):
            if not request.finished and (tokens := result.drafts.get(step.row)):
                self.drafts.waiting[request] = tokens, ()
        return news

    patch.setattr(Scheduler, "update", mutant)


def drafts_for_the_oldest(patch: pytest.MonkeyPatch) -> None:
    def mutant(wanted: Sequence[int], total: int) -> list[int]:
        given = []
        for most in wanted:
            given.append(max(min(most, total), 0))
            total -= given[-1]
        return given

    patch.setattr("octavo.engine.drafts.in_turns", mutant)


def forget_the_bound_of_samples(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepBuilder, "left_for_drafts", property(lambda self: self.left))


def change_nothing() -> None:
    test_drafts_that_are_rejected_change_nothing(1)


def cost_nobody_a_token() -> None:
    test_every_row_has_at_least_as_many_tokens_as_without(2, wrong_drafts)


def give_everybody_as_much() -> None:
    test_every_row_has_at_least_as_many_tokens_as_without(2, some_drafts)


@pytest.mark.parametrize(
    ("mutate", "test"),
    [
        (drafts_before_other_rows, change_nothing),
        (drafts_before_other_rows, cost_nobody_a_token),
        (drafts_before_other_rows, test_a_prompt_and_a_newcomer_come_before_drafts),
        (evict_for_drafts, test_no_cached_prefix_is_evicted_and_no_page_kept_for_a_draft),
        (evict_for_drafts, change_nothing),
        (preempt_for_drafts, change_nothing),
        (keep_the_pages_of_rejected_drafts, change_nothing),
        (plan_while_drafts_are_verified, cost_nobody_a_token),
        (
            plan_while_drafts_are_verified,
            test_while_drafts_come_a_step_is_planned_when_the_one_before_it_is_known,
        ),
        (drafts_of_an_overtaken_row, give_everybody_as_much),
        (drafts_for_the_oldest, test_one_token_for_everybody_comes_before_drafts),
        (forget_the_bound_of_samples, test_the_executor_is_not_asked_for_more_samples_than_it_can_draw),
    ],
    ids=lambda value: value.__name__,
)
def test_the_rules_own_test_catches_it(
    mutate: Patch, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError, PlanError)):
        test()
