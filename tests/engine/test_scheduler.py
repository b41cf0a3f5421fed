"""Every rule of the Scheduler's specification, by its number."""

from __future__ import annotations

import pytest

from octavo.config import SchedulerConfig
from octavo.engine.budget import MARGIN
from octavo.engine.page_pool import IntegrityError
from octavo.engine.request import EngineRequest, Request, RequestState
from octavo.engine.scheduler import Scheduler
from octavo.engine.step_plan import StepPlan, StepResult
from octavo.params import RequestMetrics, SampledToken, SamplingParams
from support.engine_harness import Harness
from support.random_driver import oracle_drafts
from support.toy_executor import Toy

FREE = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)


def params(**changes: object) -> SamplingParams:
    return FREE.replace(**changes)


def last_plan(harness: Harness) -> StepPlan:
    return harness.executor.plans[-1]


def counts(harness: Harness) -> dict[int, int]:
    """row -> tokens in the last step."""
    return {step.row: step.count for step in last_plan(harness).steps}


def prompt(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


# --- 1, 2: one equation, budget ---------------------------------------------------------------------


def test_prompts_longer_than_the_budget_are_chunked() -> None:
    h = Harness(max_num_batched_tokens=7)
    h.add(prompt(1, 17), params(max_tokens=3))
    h.run()
    spans = [(s.start, s.count, s.sample) for plan in h.executor.plans for s in plan.steps]
    assert spans == [(0, 7, False), (7, 7, False), (14, 3, True), (17, 1, True), (18, 1, True)]


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 64])
def test_chunk_size_does_not_change_the_tokens(chunk: int) -> None:
    h = Harness(max_num_batched_tokens=chunk)
    names = [h.add(prompt(1 + i, 11 + i), params(temperature=1.0, seed=i)) for i in range(3)]
    h.drain_and_check()
    assert [h.tokens[name, 0] for name in names] == [h.expected(name) for name in names]
    assert max(plan.num_tokens for plan in h.executor.plans) <= chunk


def test_the_time_target_bounds_prompts_while_something_decodes() -> None:
    now = [0.0]
    h = Harness(
        num_pages=100, max_model_len=200, max_num_batched_tokens=64, step_target_s=0.1, clock=lambda: now[0]
    )
    execute = h.executor.execute

    def slowly(plan: StepPlan) -> StepResult:
        now[0] += 0.004 * plan.num_tokens  # 25 tokens in 0.1 s
        return execute(plan)

    h.executor.execute = slowly  # type: ignore[method-assign]
    h.add(prompt(1, 4), params(max_tokens=60))
    h.step()
    h.add(prompt(100, 190), params(max_tokens=2))
    h.add(prompt(400, 190), params(max_tokens=2))
    for _ in range(10):
        h.step()
    assert 25 * MARGIN - 1 <= max(plan.num_tokens for plan in h.executor.plans) <= 25
    assert last_plan(h).steps[0].sample
    h.drain_and_check()


# --- 3: order ---------------------------------------------------------------------------------------


def test_decodes_come_before_prompts_and_older_before_younger() -> None:
    h = Harness(num_pages=40, max_num_batched_tokens=6)
    first = h.add(prompt(1, 2))
    second = h.add(prompt(20, 4))
    h.step()  # both prompts fit: 2 + 4
    third = h.add(prompt(40, 9))
    fourth = h.add(prompt(60, 3))
    rows = {name: h.request(name).row for name in (first, second)}
    h.step()
    rows[third] = h.request(third).row
    assert counts(h) == {rows[first]: 1, rows[second]: 1, rows[third]: 4}
    h.step()
    assert counts(h) == {rows[first]: 1, rows[second]: 1, rows[third]: 4}
    h.step()  # the rest of the third, then the fourth may enter
    rows[fourth] = h.request(fourth).row
    assert counts(h) == {rows[first]: 1, rows[second]: 1, rows[third]: 1, rows[fourth]: 3}
    h.drain_and_check()


def test_a_late_arrival_gets_its_first_token_before_the_other_ends() -> None:
    h = Harness(num_pages=40)
    early = h.add(prompt(1, 6), params(max_tokens=20))
    h.step()
    h.step()
    late = h.add(prompt(50, 6))
    h.step()
    assert h.tokens[late, 0] == h.expected(late)[:1]
    assert len(h.tokens[early, 0]) == 3
    assert (early, 0) not in h.reasons
    h.drain_and_check()


def test_the_oldest_is_not_starved_by_newcomers() -> None:
    h = Harness(num_pages=12, max_num_seqs=3, max_num_batched_tokens=4, max_waiting=999)
    old = h.add(prompt(1, 12), params(max_tokens=20))
    for step in range(60):
        if (old, 0) in h.reasons:
            break
        h.add(prompt(step, 6), params(max_tokens=6))
        h.step()
    assert h.reasons[old, 0] == "length"
    assert step < 12 + 20
    h.drain_and_check()


def test_waiting_requests_enter_in_order_of_arrival() -> None:
    h = Harness(num_pages=40, max_num_seqs=1)
    names = [h.add([i + 1, 2], params(max_tokens=2)) for i in range(5)]
    h.run()
    assert [new.request_id for plan in h.executor.plans for new in plan.new_rows] == names


def test_lower_priority_numbers_go_first() -> None:
    h = Harness(num_pages=40, max_num_seqs=1)
    for priority in (1, 0, 5, -2, 0):
        h.add([priority + 9, 2], params(max_tokens=1), priority=priority)
    h.run()
    order = [new.request_id for plan in h.executor.plans for new in plan.new_rows]
    assert order == ["r3", "r1", "r4", "r0", "r2"]


# --- 4: admission -----------------------------------------------------------------------------------


def test_nobody_enters_whose_tokens_do_not_fit_and_nobody_overtakes_it() -> None:
    h = Harness(num_pages=10, max_num_batched_tokens=64)
    h.add(prompt(1, 20), params(max_tokens=4))
    big, small = h.add(prompt(30, 24), params(max_tokens=4)), h.add(prompt(60, 2), params(max_tokens=4))
    h.step()
    assert [h.state(big), h.state(small)] == [RequestState.WAITING] * 2
    h.drain_and_check()
    assert h.scheduler.num_preemptions == 0
    admitted = [new.request_id for plan in h.executor.plans for new in plan.new_rows]
    assert admitted == ["r0", big, small]


def test_a_newcomer_leaves_a_page_for_everybody_who_runs() -> None:
    h = Harness(num_pages=10, max_num_seqs=3, max_num_batched_tokens=64)
    h.add(prompt(1, 8), params(max_tokens=5))
    newcomer = h.add(prompt(10, 32), params(max_tokens=2))  # 8 pages: all that the first leaves
    h.step()
    assert h.state(newcomer) is RequestState.WAITING
    h.drain_and_check()
    assert h.scheduler.num_preemptions == 0


# --- 5: sharing -------------------------------------------------------------------------------------


def test_a_second_identical_prompt_hits_the_cache() -> None:
    h = Harness()
    first = h.add(prompt(1, 14))
    h.run()
    second = h.add(prompt(1, 14))
    h.run()
    assert (h.cached[first, 0], h.cached[second, 0]) == (0, 12)
    assert h.tokens[second, 0] == h.tokens[first, 0]
    stats = h.core.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (28, 12)


def test_the_next_turn_of_a_chat_hits_what_was_generated() -> None:
    h = Harness()
    first = h.add(prompt(1, 6))
    h.run()
    turn = prompt(1, 6) + h.tokens[first, 0] + [40, 41, 42]
    second = h.add(turn)
    h.run()
    assert h.cached[second, 0] == 12  # 6 + 8 tokens, of which the last was never computed


@pytest.mark.parametrize("depth", [1, 2])
def test_samples_of_one_prompt_cost_one_prefill(depth: int) -> None:
    h = Harness(num_pages=60, max_num_seqs=8, depth=depth)
    name = h.add(prompt(1, 14), params(n=6, temperature=1.0, max_tokens=3, ignore_eos=True))
    h.run()
    assert h.computed_tokens() == 14 + 5 + 6 * 2  # each sibling the last token, whose logits it needs
    assert h.executor.num_copies == 5  # and its own copy of the partial page that it goes to
    assert [h.cached[name, index] for index in range(6)] == [0] + [12] * 5
    assert len({tuple(h.tokens[name, index]) for index in range(6)}) > 1


def test_samples_share_their_prompt_without_a_prefix_cache_too() -> None:
    h = Harness(num_pages=60, max_num_seqs=8, enable_prefix_caching=False)
    name = h.add(prompt(1, 30), params(n=4, temperature=1.0, max_tokens=4, ignore_eos=True))
    for _ in range(3):
        h.step()
    assert h.kv.pool.num_free == 60 - (7 + 4)  # 7 whole pages together, one each
    h.drain_and_check()
    assert h.computed_tokens() == 30 + 3 + 4 * 3
    assert [h.cached[name, index] for index in range(4)] == [0] * 4
    assert h.core.stats().prefix_hits == 0


def test_equal_prompts_that_arrive_together_cost_one_prefill_even_in_chunks() -> None:
    h = Harness(num_pages=60, max_num_batched_tokens=6)
    for tail in (70, 80, 90):
        h.add([*prompt(1, 16), tail], params(max_tokens=1))
    h.run()
    assert h.computed_tokens() == 17 + 1 + 1


def test_waiting_to_share_lets_others_pass_and_ends_with_the_leader() -> None:
    h = Harness(num_pages=60, max_num_batched_tokens=4)
    leader = h.add(prompt(1, 16))
    follower, stranger = h.add(prompt(1, 16)), h.add(prompt(60, 8))
    h.step()
    h.step()
    assert h.state(follower) is RequestState.WAITING
    h.abort(leader)
    h.step()
    h.step()
    assert h.state(follower) is RequestState.RUNNING
    h.drain_and_check()
    assert h.cached[follower, 0] == 8  # what the leader had computed
    assert h.tokens[stranger, 0] == h.expected(stranger)


def test_prompts_below_a_page_do_not_wait_for_each_other() -> None:
    h = Harness(num_pages=60)
    for _ in range(3):
        h.add([1, 2, 3, 4])
    h.step()
    assert len(h.scheduler.running) == 3
    h.drain_and_check()


def test_nothing_is_shared_across_salts_or_without_caching() -> None:
    for caching, salts in ((True, ("a", "b")), (False, (None, None))):
        h = Harness(num_pages=40, enable_prefix_caching=caching)
        for salt in salts:
            h.add(prompt(1, 10), params(max_tokens=1), salt=salt)
        h.step()
        assert h.computed_tokens() == 16  # both at once, as far as the budget goes
        h.run()
        assert h.computed_tokens() == 20


# --- 6: preemption ----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_requests_give_the_same_tokens(depth: int) -> None:
    h = Harness(num_pages=11, depth=depth)
    names = [h.add(prompt(1 + 20 * i, 6), params(max_tokens=24, temperature=1.0, seed=i)) for i in range(3)]
    h.drain_and_check()
    assert h.scheduler.num_preemptions > 0
    assert [h.tokens[name, 0] for name in names] == [h.expected(name) for name in names]


def test_the_youngest_is_preempted_and_resumes_from_the_cache_in_its_old_place() -> None:
    h = Harness(num_pages=10, max_num_seqs=4)
    old = h.add(prompt(1, 8), params(max_tokens=28))
    young = h.add(prompt(30, 8), params(max_tokens=28))
    while h.scheduler.num_preemptions == 0:
        h.step()
    assert (h.state(old), h.state(young)) == (RequestState.RUNNING, RequestState.PREEMPTED)
    assert h.request(young).metrics.num_preemptions == 1
    later = h.add(prompt(60, 2))
    assert h.scheduler.waiting[0] is h.request(young)
    victim = h.request(young)
    generated = len(h.tokens[young, 0])
    while victim.state is RequestState.PREEMPTED:
        h.step()
    resumed = next(new for new in last_plan(h).new_rows if new.request_id == young)
    assert len(resumed.token_ids) == 8 + generated
    assert resumed.num_prompt_tokens == 8
    start = next(step.start for step in last_plan(h).steps if step.row == resumed.row)
    assert start > 0, "its pages were still in the cache"
    h.drain_and_check()
    assert h.cached[young, 0] == 0, "num_cached_tokens is about the first admission"
    assert h.reasons[later, 0] == "length"


def test_a_victim_that_was_in_the_step_is_taken_out_again() -> None:
    """A prompt that goes first needs a page after a younger decode has been placed in the same step."""
    h = Harness(num_pages=6, max_num_seqs=2, max_model_len=24, max_num_batched_tokens=6)
    h.scheduler.growth_pages = 0
    young = h.add(prompt(30, 3), params(max_tokens=20))
    h.step()
    first = h.add(prompt(1, 17), params(max_tokens=4), priority=-1)
    while h.scheduler.num_preemptions == 0:
        h.step()
    assert h.state(young) is RequestState.PREEMPTED
    plan = last_plan(h)
    assert [(s.row, s.start, s.count) for s in plan.steps] == [(h.request(first).row, 15, 2)]
    h.drain_and_check()


def test_a_lone_request_may_fill_the_pool() -> None:
    h = Harness(num_pages=10, max_model_len=40, max_num_batched_tokens=64)
    first = h.add(prompt(1, 39), params(max_tokens=None))
    second = h.add(prompt(100, 20), params(max_tokens=None))
    h.drain_and_check()
    assert [len(h.tokens[name, 0]) for name in (first, second)] == [1, 20]


# --- 7, 8: sampling and steps in flight -------------------------------------------------------------


def test_the_next_step_is_planned_before_the_result_is_known() -> None:
    h = Harness(depth=2, num_pages=40)
    name = h.add(prompt(1, 5), params(max_tokens=3))
    h.step()
    plans = h.executor.plans
    assert len(plans) == 2
    assert [(s.start, s.count) for s in plans[1].steps] == [(5, 1)]
    assert len(h.tokens[name, 0]) == 1
    h.run()
    assert h.tokens[name, 0] == h.expected(name)
    assert h.computed_tokens() == 5 + 2, "past max_tokens nothing is planned"


def test_a_stop_is_found_one_step_late_and_the_surplus_token_dropped() -> None:
    h = Harness(depth=2, num_pages=40)
    free = params(max_tokens=6, temperature=0.0)
    probe = h.add(prompt(1, 5), free)
    h.run()
    stop = h.expected(probe)[2]
    h.core.reset_prefix_cache()
    before = h.computed_tokens()
    name = h.add(prompt(1, 5), free.replace(stop_token_ids=[stop]))
    h.drain_and_check()
    assert h.tokens[name, 0] == h.expected(probe)[:3]
    assert h.reasons[name, 0] == "stop"
    assert h.computed_tokens() - before == 5 + 2 + 1


def sequence(name: str, arrival: int) -> Request:
    asked = EngineRequest(name, [1], FREE)
    return Request(asked, 0, 0, (0, arrival), 32, frozenset(), RequestMetrics(0.0))


def test_three_steps_in_flight_are_refused() -> None:
    scheduler = Scheduler(SchedulerConfig(num_pages=8, page_size=4, max_model_len=32))
    scheduler.add(sequence("r", 0))
    assert scheduler.schedule() is not None
    assert scheduler.schedule() is not None
    with pytest.raises(IntegrityError, match="too many steps"):
        scheduler.schedule()


def test_results_of_another_step_and_missing_tokens_are_refused() -> None:
    scheduler = Scheduler(SchedulerConfig(num_pages=8, page_size=4, max_model_len=32))
    request = sequence("r", 0)
    scheduler.add(request)
    plan = scheduler.schedule()
    assert plan is not None
    updates = scheduler.update(StepResult(plan.step_id, {}, {}))
    assert (updates[0].finish_reason, request.finished) == ("error", True)
    assert "did not return the tokens" in str(updates[0].stop_reason)
    again = sequence("s", 1)
    scheduler.add(again)
    assert scheduler.schedule() is not None
    with pytest.raises(IntegrityError, match="result 7 came for step 1"):
        scheduler.update(StepResult(7, {0: (SampledToken(1),)}, {}))


def test_drafts_are_verified_and_change_nothing_but_the_number_of_steps() -> None:
    long = params(max_tokens=24)
    plain = Harness(num_pages=40)
    plain.add(prompt(1, 5), long)
    plain.run()
    h = Harness(num_pages=40, propose=oracle_drafts(64, 4))
    name = h.add(prompt(1, 5), long)
    h.drain_and_check()
    assert h.tokens[name, 0] == plain.tokens["r0", 0]
    verified = [step for plan in h.executor.plans for step in plan.steps if step.drafts]
    assert len(h.executor.plans) < len(plain.executor.plans)
    assert max(s.start + s.count for s in verified) <= 5 + 24 - 1, "drafts stay within max_tokens"


def test_drafts_are_verified_with_two_steps_in_flight_and_overtaken_ones_dropped() -> None:
    h = Harness(num_pages=40, depth=2, propose=oracle_drafts(64, 4))
    h.add(prompt(1, 5), params(max_tokens=24))
    h.drain_and_check()
    verified = [sum(len(step.drafts) for step in plan.steps) for plan in h.executor.plans]
    assert verified[:2] == [0, 0], "the second step was in flight when the first drafts came"
    assert sum(verified) > 12
    assert len(h.executor.plans) < 5 + 12


def test_a_small_budget_trims_drafts() -> None:
    h = Harness(num_pages=40, max_num_batched_tokens=3, propose=oracle_drafts(64, 4))
    h.add(prompt(1, 2), params(temperature=0.0))
    h.drain_and_check()
    assert max(len(s.drafts) for plan in h.executor.plans for s in plan.steps) == 2


def test_tokens_accepted_beyond_a_stop_are_dropped_and_not_cached() -> None:
    toy = Toy()
    free = params(max_tokens=20, temperature=0.0)

    def perfect(tokens: list[int], seed: int) -> list[int]:
        from support.toy_executor import fingerprints

        known = list(tokens)
        for _ in range(6):
            known.append(toy.next_token(fingerprints(known)[-1], seed, 0, free, False))
        return known[len(tokens) :]

    probe = Harness(num_pages=40)
    probe.add(prompt(1, 5), free)
    probe.run()
    stop = probe.tokens["r0", 0][3]
    h = Harness(num_pages=40, propose=perfect)  # type: ignore[arg-type]
    name = h.add(prompt(1, 5), free.replace(stop_token_ids=[stop]))
    h.run()
    assert h.tokens[name, 0] == probe.tokens["r0", 0][:4]
    assert h.kv.cache.num_pages == (5 + 4) // 4
    h.drain_and_check()


# --- 9, 10: cache and rows --------------------------------------------------------------------------


def test_prompt_pages_are_cached_chunk_by_chunk() -> None:
    h = Harness(max_num_batched_tokens=6)
    h.add(prompt(1, 16))
    seen = []
    for _ in range(3):
        h.step()
        seen.append(h.kv.cache.num_pages)
    assert seen == [1, 3, 4]
    h.drain_and_check()


def test_nothing_is_cached_before_a_result_confirms_it() -> None:
    h = Harness()
    name = h.add(prompt(1, 9))
    assert h.scheduler.schedule() is not None  # in flight: it may still fail
    h.abort(name)
    assert h.kv.cache.num_pages == 0


def test_freed_rows_are_named_once_and_rows_are_kept() -> None:
    h = Harness(num_pages=40, max_num_seqs=2)
    for i in range(5):
        h.add([i + 1, 2, 3], params(max_tokens=2 + i))
    h.run()
    rows: dict[str, set[int]] = {}
    for plan in h.executor.plans:
        for new in plan.new_rows:
            rows.setdefault(new.request_id, set()).add(new.row)
    assert set(rows) == {f"r{i}" for i in range(5)}
    assert all(len(used) == 1 for used in rows.values())
    freed = [row for plan in h.executor.plans for row in plan.freed_rows]
    assert freed == [0, 1, 0, 1], "the last one's is for the next plan"


def test_pages_are_sent_once() -> None:
    h = Harness(num_pages=40)
    name = h.add(prompt(1, 6), params(max_tokens=12))
    h.step()
    request = h.request(name)
    table: list[int] = []
    while (name, 0) not in h.reasons:
        table = list(request.kv.page_table)
        h.step()
    sent = [page for plan in h.executor.plans for step in plan.steps for page in step.pages]
    assert sent[: len(table)] == table
    assert len(sent) == -(-(6 + 12 - 1) // 4)
