"""Encoder inputs in the engine: computed whole and once, shared while in use, freed with the last user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo.config import SchedulerConfig
from octavo.engine.groups.cross_pages import CrossPages
from octavo.engine.kv_manager import KVManager
from octavo.engine.page_group import AdmitStatus, EncoderOutput
from octavo.engine.page_pool import IntegrityError
from octavo.engine.request import Namespace, Request
from octavo.engine.step_builder import StepBuilder
from octavo.engine.step_plan import EncoderInput, NewRow
from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams
from support.engine_harness import Harness
from support.mutants import must_be_noticed
from support.page_parts import the
from support.random_driver import drive
from support.toy_executor import PlanError

GREEDY = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.0)
SOURCE, OTHER = [5, 6, 7, 8, 9], [9, 8, 7]


def harness(**changes: Any) -> Harness:
    return Harness(**{"num_pages": 40, "max_encoder_len": 12, **changes})


def encoded(h: Harness) -> list[EncoderInput]:
    """What the encoder has computed so far."""
    return [e for plan in h.executor.plans for e in plan.encodes]


def test_the_samples_of_a_request_share_one_encoder_output() -> None:
    h = harness()
    h.add([1], SamplingParams(n=3, max_tokens=4, ignore_eos=True), encoder=SOURCE)
    h.step()
    assert len(h.scheduler.running) == 3
    assert [e.token_ids for e in encoded(h)] == [tuple(SOURCE)]
    assert len({r.kv.cross.pages for r in h.scheduler.running if r.kv.cross}) == 1
    h.drain_and_check()
    assert len(encoded(h)) == 1


def test_other_inputs_and_other_salts_share_nothing() -> None:
    h = harness(max_num_seqs=8)
    for source, salt in ((SOURCE, None), (OTHER, None), (SOURCE, "tenant"), (SOURCE, ""), (SOURCE, None)):
        h.add([1], GREEDY, encoder=source, salt=salt)
    h.drain_and_check()
    assert [len(e.token_ids) for e in encoded(h)] == [5, 3, 5, 5]


def test_a_decoder_prompt_is_cached_under_its_encoder_input() -> None:
    """Equal decoder tokens mean nothing where the encoder has read something else."""
    h = harness(page_size=2)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    for source in (SOURCE, OTHER, SOURCE):
        h.add(prompt, GREEDY, encoder=source)
        h.run()
    assert list(h.cached.values()) == [0, 0, 6]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_late_one_shares_what_is_in_use_once_it_is_confirmed(depth: int) -> None:
    h = harness(depth=depth)
    h.add([1], SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.0), encoder=SOURCE)
    h.step()
    h.add([1], GREEDY, encoder=SOURCE)
    h.drain_and_check()
    assert len(encoded(h)) == 1
    h.add([1], GREEDY, encoder=SOURCE)  # nobody has kept it
    h.drain_and_check()
    assert len(encoded(h)) == 2


def test_after_a_failed_step_its_readers_encode_anew() -> None:
    h = harness()
    failures = [RuntimeError("broken")]
    h.executor.fail_step = lambda plan: failures.pop() if failures and plan.encodes else None
    name = h.add([1], SamplingParams(n=2, max_tokens=4, ignore_eos=True), encoder=SOURCE)
    h.drain_and_check()
    assert [h.reasons[name, i] for i in range(2)] == ["length", "length"]
    assert len(encoded(h)) > 1


def test_nobody_reads_what_a_step_in_flight_may_fail_to_write() -> None:
    """The second sample finds no budget in the step of the first; the next one is planned at once."""
    h = harness(depth=2, max_num_batched_tokens=12)
    failures = [RuntimeError("broken")]
    h.executor.fail_step = lambda plan: failures.pop() if failures and plan.encodes else None
    name = h.add([1], SamplingParams(n=2, max_tokens=4, ignore_eos=True), encoder=[3] * 12)
    h.drain_and_check()
    assert [h.reasons[name, i] for i in range(2)] == ["length", "length"]
    plans = [plan for plan in h.executor.plans if plan.new_rows]
    assert all(plan.encodes for plan in plans[:2]), "each has an input of its own"


def test_two_steps_in_flight_encode_once() -> None:
    h = harness(depth=2, max_num_batched_tokens=12)
    h.add([1], SamplingParams(n=2, max_tokens=4, ignore_eos=True), encoder=[3] * 12)
    h.drain_and_check()
    assert len(encoded(h)) == 1


def test_an_input_is_whole_and_its_first_may_exceed_the_budget() -> None:
    h = harness(max_num_batched_tokens=12)
    h.add([1], SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.0), encoder=OTHER)
    for _ in range(3):
        h.step()
    names = [h.add([1], GREEDY, encoder=[t] * 12) for t in (3, 4)]
    h.step()
    assert [len(e.token_ids) for e in h.executor.plans[-1].encodes] == [12]
    assert h.executor.plans[-1].num_tokens == 1 + 12 + 1
    h.step()
    assert [len(e.token_ids) for e in h.executor.plans[-1].encodes] == [12]
    h.drain_and_check()
    assert all(h.reasons[name, 0] == "length" for name in names)


def test_small_inputs_share_a_step_within_the_budget() -> None:
    h = harness(max_num_batched_tokens=12, max_num_seqs=8)
    for token in range(1, 5):
        h.add([1], GREEDY, encoder=[token] * 3)
    h.step()
    assert [len(e.token_ids) for e in h.executor.plans[-1].encodes] == [3, 3, 3]  # 3 * (3 + 1) = 12
    h.drain_and_check()


def test_a_preempted_request_is_encoded_anew() -> None:
    h = harness(num_pages=13, max_num_seqs=2, max_model_len=40, page_size=4, max_num_batched_tokens=64)
    h.scheduler.growth_pages = 0
    long = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.0)
    for source in (SOURCE, OTHER):
        h.add([1, 2], long, encoder=source)
    h.drain_and_check()
    assert h.scheduler.num_preemptions > 0
    assert len(encoded(h)) == 2 + h.scheduler.num_preemptions


def test_an_abort_frees_the_output_with_the_last_reader() -> None:
    h = harness()
    name = h.add([1], SamplingParams(n=2, max_tokens=20, ignore_eos=True), encoder=SOURCE)
    h.step()
    h.abort(name, 0)
    assert [output.users for output in the(h.kv, CrossPages).outputs()] == [1]
    h.abort(name)
    assert the(h.kv, CrossPages).outputs() == ()
    h.drain_and_check()


@pytest.mark.parametrize(
    ("source", "longest", "message"),
    [
        ([1] * 13, 12, "has 13 tokens; at most 12 are computed in one step"),
        ([], 12, "needs at least one token for its encoder"),
        ([1], 0, "has no encoder"),
        ([1, -3], 12, "token id -3 of the encoder's input is not in the vocabulary"),
    ],
)
def test_what_cannot_be_encoded_is_refused(source: list[int], longest: int, message: str) -> None:
    h = harness(max_encoder_len=longest)
    with pytest.raises(InvalidRequestError, match=message):
        h.add([1], encoder=source)


def test_an_input_that_no_step_or_pool_holds_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidRequestError, match="max_num_batched_tokens 4 must hold it"):
        SchedulerConfig(
            num_pages=9, page_size=4, max_model_len=8, max_num_batched_tokens=4, max_encoder_len=5
        )
    with pytest.raises(InvalidRequestError, match="max_encoder_len 9 needs 5 pages, the pool has 4"):
        SchedulerConfig(num_pages=4, page_size=4, max_model_len=8, max_encoder_len=9)


# --- mistakes, made on purpose ------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def share_what_is_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    encode = StepBuilder.encode

    def mutant(self: StepBuilder, request: Request, output: EncoderOutput) -> None:
        encode(self, request, output)
        output.written = True

    patch.setattr(StepBuilder, "encode", mutant)


def encode_again_while_it_is_written(patch: pytest.MonkeyPatch) -> None:
    status_of = KVManager.admit_status

    def mutant(self: KVManager, request: Request, step: StepBuilder) -> AdmitStatus:
        found = status_of(self, request, step)
        return AdmitStatus.NOW if found is AdmitStatus.LATER else found

    patch.setattr(KVManager, "admit_status", mutant)


def never_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CrossPages, "quit", lambda self, output: None)


def free_with_the_first_reader(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: CrossPages, output: EncoderOutput) -> None:
        if self._outputs.pop(output.key, None) is not None:
            self._pool.release(output.pages)

    patch.setattr(CrossPages, "quit", mutant)


def _say_of_every_row(patch: pytest.MonkeyPatch, compute: bool) -> None:
    new_row = StepBuilder._new_row

    def mutant(self: StepBuilder, request: Request) -> NewRow:
        row = new_row(self, request)
        return replace(row, encoder=row.encoder and replace(row.encoder, compute=compute))

    patch.setattr(StepBuilder, "_new_row", mutant)


def encode_again_for_each(patch: pytest.MonkeyPatch) -> None:
    _say_of_every_row(patch, True)


def encode_never(patch: pytest.MonkeyPatch) -> None:
    _say_of_every_row(patch, False)


def one_key_for_all_inputs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Namespace, "__post_init__", lambda self: object.__setattr__(self, "key", self.salt))


def admit_without_pages_for_the_encoder(patch: pytest.MonkeyPatch) -> None:
    begin, needed = KVManager.begin, KVManager.needed_beside

    def mutant(self: KVManager, request: Request, reserve: int) -> bool:
        return begin(self, request, reserve - needed(self, request))

    patch.setattr(KVManager, "begin", mutant)


SEEN_BY_THE_DRIVER: tuple[Patch, ...] = (
    never_free,
    free_with_the_first_reader,
    encode_never,
    one_key_for_all_inputs,
    admit_without_pages_for_the_encoder,
)


@pytest.mark.parametrize("mutate", SEEN_BY_THE_DRIVER, ids=lambda mutate: mutate.__name__)
def test_the_driver_catches_it(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    must_be_noticed(lambda seed: drive(seed, 250, encoder=True), 60)


@pytest.mark.parametrize(
    ("mutate", "test"),
    [
        (encode_again_for_each, test_the_samples_of_a_request_share_one_encoder_output),
        (share_what_is_not_confirmed, test_nobody_reads_what_a_step_in_flight_may_fail_to_write),
        (encode_again_while_it_is_written, test_two_steps_in_flight_encode_once),
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
