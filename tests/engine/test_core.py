"""EngineCore: what it refuses, how requests end, and that failures stay small."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.config import SchedulerConfig
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.engine.request import RequestState
from octavo.engine.snapshot import snapshot_of
from octavo.engine.step_plan import NewRow
from octavo.errors import InvalidRequestError, OverloadedError
from octavo.params import SamplingParams
from support.engine_harness import Harness
from support.toy_executor import EOS, Toy, ToyExecutor

GREEDY = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0)


def core(**changes: Any) -> EngineCore:
    config = SchedulerConfig(num_pages=16, page_size=4, max_model_len=40, max_num_seqs=4)
    vocab = changes.pop("vocab_size", None)
    return EngineCore(Admission(config, frozenset({EOS}), vocab), ToyExecutor(16, 4), **changes)


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "params", "message", "param"),
    [
        ([], {}, "the prompt is empty", "prompt"),
        ([1] * 40, {}, "the prompt has 40 tokens; max_model_len 40 leaves room for at most 39", "prompt"),
        ([1, 99], {}, "token id 99 is not in the vocabulary of 64", "prompt"),
        ([1, -1], {}, "token id -1 is not in the vocabulary of 64", "prompt"),
        ([1], {"logit_bias": {64: 1.0}}, "logit_bias names token 64; the model has 64", "logit_bias"),
        ([1], {"stop_token_ids": [3, 64]}, "stop_token_ids names token 64; the model has", "stop_token_ids"),
        ([1], {"allowed_token_ids": [64]}, "allowed_token_ids names token 64; the", "allowed_token_ids"),
    ],
)
def test_bad_requests_name_what_to_change(
    tokens: list[int], params: dict[str, Any], message: str, param: str
) -> None:
    engine = core(vocab_size=64)
    with pytest.raises(InvalidRequestError, match=message) as caught:
        engine.add_request("r", tokens, GREEDY.replace(**params))
    assert caught.value.param == param
    assert not engine.has_unfinished()


def test_negative_ids_are_refused_without_a_vocabulary_too() -> None:
    with pytest.raises(InvalidRequestError, match="token id -3 is negative"):
        core().add_request("r", [1, -3], GREEDY)


@pytest.mark.parametrize(
    ("tokens", "params"), [("Hello", None), ("Hello", GREEDY), ([1], 10), ([1], 0), ([1.5], None)]
)
def test_text_and_numbers_are_no_tokens_and_params(tokens: Any, params: Any) -> None:
    engine = core()
    with pytest.raises(InvalidRequestError, match="takes token ids and SamplingParams"):
        engine.add_request("r", tokens, params)
    assert not engine.has_unfinished()


@pytest.mark.parametrize("tokens", [5, b"Hi", {1: 2}])
def test_what_is_no_list_is_no_prompt(tokens: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prompt must be a list of token ids"):
        core().add_request("r", tokens)


def test_an_id_may_be_used_again_after_its_end() -> None:
    engine = core()
    engine.add_request("r", [1], GREEDY)
    with pytest.raises(InvalidRequestError, match="request_id 'r' is in use"):
        engine.add_request("r", [1], GREEDY)
    engine.abort("r")
    engine.add_request("r", [1], GREEDY)


def test_the_waiting_queue_is_bounded() -> None:
    h = Harness(max_waiting=3, max_num_seqs=1)
    for _ in range(3):
        h.add([1, 2])
    with pytest.raises(OverloadedError, match="3 requests are waiting already"):
        h.add([1, 2])
    h.step()
    h.add([1, 2])
    h.drain_and_check()


def test_each_of_n_takes_a_place_in_the_queue() -> None:
    h = Harness(max_waiting=3, max_num_seqs=2)
    with pytest.raises(InvalidRequestError, match="n 6 is above the 5 sequences"):
        h.add([1, 2], GREEDY.replace(n=6))
    h.add([1, 2])
    with pytest.raises(OverloadedError, match="1 requests are waiting already"):
        h.add([1, 2], GREEDY.replace(n=5))
    h.add([1, 2], GREEDY.replace(n=4))
    h.drain_and_check()


def test_more_than_two_steps_in_flight_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="steps_in_flight must be 1 or 2, not 3"):
        core(steps_in_flight=3)


# --- how requests end -------------------------------------------------------------------------------


def test_max_tokens_none_fills_the_context() -> None:
    h = Harness(max_model_len=40)
    name = h.add([1, 2, 3], GREEDY.replace(max_tokens=None))
    h.run()
    assert (len(h.tokens[name, 0]), h.reasons[name, 0]) == (37, "length")


def test_max_tokens_beyond_the_context_end_there() -> None:
    h = Harness(max_model_len=20)
    name = h.add([1] * 15, GREEDY.replace(max_tokens=100))
    h.run()
    assert (len(h.tokens[name, 0]), h.reasons[name, 0]) == (5, "length")


def find_end(h: Harness, prompt: list[int], params: SamplingParams) -> Any:
    name = h.add(prompt, params)
    while True:
        for update in h.step():
            if update.request_id == name and update.finish_reason:
                return update


def test_end_of_sequence_and_stop_ids_give_their_reasons() -> None:
    toy = Toy(5)  # the end of sequence is drawn soon
    h = Harness(vocab_size=toy.vocab_size)
    end = find_end(h, [1, 2], SamplingParams(max_tokens=None, temperature=0.0))
    assert (end.finish_reason, end.stop_reason, end.tokens[-1].token_id) == ("stop", None, EOS)
    free = h.add([1, 2], SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True))
    h.run()
    assert EOS in h.tokens[free, 0]
    assert h.reasons[free, 0] == "length"
    stop = h.tokens[free, 0][0]
    end = find_end(h, [1, 2], SamplingParams(temperature=0.0, stop_token_ids=[stop], ignore_eos=True))
    assert (end.finish_reason, end.stop_reason) == ("stop", stop)


def test_end_of_sequence_as_the_callers_own_stop_id_is_named() -> None:
    h = Harness(vocab_size=5)
    end = find_end(h, [1, 2], SamplingParams(max_tokens=None, temperature=0.0, stop_token_ids=[EOS]))
    assert (end.finish_reason, end.stop_reason) == ("stop", EOS)


@pytest.mark.parametrize("min_tokens", [1, 4, 9])
def test_min_tokens_come_before_any_stop(min_tokens: int) -> None:
    h = Harness(vocab_size=5)
    params = SamplingParams(max_tokens=30, min_tokens=min_tokens, stop_token_ids=[1, 2], temperature=0.0)
    name = h.add([1, 2], params)
    h.run()
    assert len(h.tokens[name, 0]) > min_tokens
    assert not set(h.tokens[name, 0][:min_tokens]) & {EOS, 1, 2}


def test_seeds_are_drawn_where_none_is_given() -> None:
    engine = core(rng=random.Random(5))
    drawn = random.Random(5).getrandbits(53)
    assert engine.add_request("a", [1]) == drawn < 2**53, "a JSON client keeps no more"
    assert engine.add_request("b", [1], SamplingParams(seed=11)) == 11
    engine.step()
    assert {plan.seed for plan in engine._executor.plans[0].new_rows} == {drawn, 11}  # type: ignore[attr-defined]
    other = core()
    assert other.add_request("a", [1]) != other.add_request("b", [1])


def test_metrics_tell_when_what_happened() -> None:
    now = iter(range(100))
    h = Harness(clock=lambda: float(next(now)))
    end = find_end(h, [1, 2], GREEDY.replace(max_tokens=3))
    m = end.metrics
    times = [m.arrival_time, m.first_scheduled_time, m.first_token_time, m.last_token_time]
    assert times == sorted(times)
    assert len(set(times)) == 4
    assert m.finished_time == m.last_token_time


def test_stats_count() -> None:
    h = Harness(num_pages=10, max_num_seqs=1)
    h.add([1, 2, 3, 4, 5], GREEDY.replace(n=2, max_tokens=3))
    h.step()
    stats = h.core.stats()
    assert (stats.running, stats.waiting, stats.kv_usage) == (1, 1, pytest.approx(0.2))
    h.run()
    stats = h.core.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.running, stats.waiting) == (5, 6, 0, 0)
    assert stats.steps == 6


# --- abort ------------------------------------------------------------------------------------------


def test_abort_in_every_state() -> None:
    h = Harness(num_pages=10, max_num_seqs=3, max_num_batched_tokens=8)
    running = h.add(list(range(1, 9)), GREEDY.replace(max_tokens=28))
    young = h.add(list(range(30, 38)), GREEDY.replace(max_tokens=28))
    while h.scheduler.num_preemptions == 0:
        h.step()
    prefilling = h.add([9] * 20, GREEDY, priority=-1)
    waiting = h.add([7] * 20)
    h.abort(running)
    h.step()
    states = {name: h.state(name) for name in (young, prefilling, waiting)}
    assert states == {
        young: RequestState.PREEMPTED,
        prefilling: RequestState.RUNNING,
        waiting: RequestState.WAITING,
    }
    for name in states:
        (update,) = h.abort(name)
        assert (update.finish_reason, update.tokens) == ("abort", ())
        assert h.abort(name) == []  # it has ended
    assert h.abort("nobody") == []
    assert not h.core.has_unfinished()
    h.drain_and_check()


def test_abort_with_steps_in_flight_drops_their_tokens() -> None:
    h = Harness(depth=2, num_pages=40)
    name, other = h.add([1, 2, 3]), h.add([4, 5, 6])
    h.step()
    h.abort(name)
    length = len(h.tokens[name, 0])
    h.drain_and_check()
    assert len(h.tokens[name, 0]) == length
    assert h.tokens[other, 0] == h.expected(other)


def test_one_of_n_can_be_aborted_alone() -> None:
    h = Harness(num_pages=40)
    name = h.add([1, 2, 3], GREEDY.replace(n=3))
    h.step()
    (update,) = h.abort(name, 1)
    assert update.index == 1
    h.drain_and_check()
    assert [h.reasons[name, i] for i in range(3)] == ["length", "abort", "length"]


# --- failures stay small ----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_row_ends_its_request_alone(depth: int) -> None:
    h = Harness(num_pages=40, depth=depth)
    names = [h.add([i + 1] * 9) for i in range(3)]
    h.step()

    def fail(new: NewRow) -> str | None:
        return "logits are not finite" if new.request_id == names[1] else None

    h.executor.fail_row = fail
    ends = [update for _ in range(3) for update in h.step() if update.finish_reason == "error"]
    assert [(end.request_id, end.stop_reason) for end in ends] == [(names[1], "logits are not finite")]
    h.executor.fail_row = lambda new: None
    h.drain_and_check()
    for name in (names[0], names[2]):
        assert h.tokens[name, 0] == h.expected(name)


@pytest.mark.parametrize("priority", [2**31, -(2**31), 10**30])
def test_a_priority_out_of_range_is_refused_and_harms_nobody(priority: int) -> None:
    h = Harness()
    other = h.add([1, 2, 3])
    with pytest.raises(InvalidRequestError, match="priority must be from") as caught:
        h.core.add_request("far", [1, 2, 3], priority=priority)
    assert caught.value.param == "priority"
    h.drain_and_check()
    assert h.reasons[other, 0] == "length"


def test_a_snapshot_counts_each_page_once() -> None:
    h = Harness(num_pages=16, page_size=4)
    snapshot = snapshot_of(h.core)
    assert (snapshot.free, snapshot.cached, snapshot.used, snapshot.shared, snapshot.rows) == (
        16,
        0,
        0,
        0,
        (),
    )
    h.add([1, 2, 3, 4, 5, 6, 7, 8, 9], SamplingParams(max_tokens=6, n=2, ignore_eos=True, seed=1))
    h.step()
    h.step()
    snapshot = snapshot_of(h.core)
    tables = [page for request in h.scheduler.running for page in request.kv.page_table]
    assert snapshot.shared == len(tables) - len(set(tables)) > 0
    assert snapshot.used == len(set(tables)) - snapshot.shared > 0
    assert snapshot.free + snapshot.cached == 16 - len(set(tables))
    rows = [(row.request_id, row.index, row.num_tokens, row.num_computed) for row in snapshot.rows]
    assert rows == [
        (r.request_id, r.index, len(r.token_ids), r.kv.num_computed_tokens) for r in h.scheduler.running
    ]
    assert sum(row.in_last_step for row in snapshot.rows) == h.executor.plans[-1].num_tokens
    h.run()
    snapshot = snapshot_of(h.core)
    assert snapshot.cached == h.kv.num_available - snapshot.free > 0
    assert (snapshot.used, snapshot.shared, snapshot.rows) == (0, 0, ())


def test_a_snapshot_tells_a_row_from_whoever_had_it_before() -> None:
    """With two steps in flight a row may be another request's when its last step's result comes."""
    h = Harness(depth=2, max_num_seqs=1)
    name = h.add([1, 2, 3])
    h.step()
    h.abort(name)
    h.add([4, 5, 6, 7, 8])
    seen = []
    for _ in range(2):
        h.step()
        seen += [(row.request_id, row.row, row.in_last_step) for row in snapshot_of(h.core).rows]
    assert seen == [("r1", 0, 0), ("r1", 0, 5)]
