"""A step that fails costs only the request that makes it fail; and when the engine ends for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine.request import RequestState
from octavo.engine.retries import FAILED, MAX_FAILED_STEPS, TRIES, StepRetries, Suspect
from octavo.engine.step_plan import StepPlan
from octavo.errors import DeviceLostError, EngineDeadError, RequestFailedError, StepTooLargeError
from octavo.params import BeamSearchParams, SamplingParams
from support.async_harness import expected, house, run
from support.engine_harness import Harness
from support.mutants import must_be_noticed
from support.random_driver import random_harness, random_prompt

SECRET = "/home/operator/private/model.gguf"
PARAMS = {
    "one": None,
    "n": SamplingParams(n=3, max_tokens=9, seed=4, ignore_eos=True),
    "beams": SamplingParams(n=2, beam_search=BeamSearchParams(2, max_tokens=6)),
}


def poison(h: Harness, *names: str, error: BaseException | None = None) -> None:
    """Every step that computes anything of these requests fails."""

    def fail(plan: StepPlan) -> BaseException | None:
        rows = {row: entered.new.request_id for row, entered in h.executor.rows.items()}
        rows |= {new.row: new.request_id for new in plan.new_rows}
        mine = any(rows.get(step.row) in names for step in plan.steps)
        return (error or OSError(5, "a secret path", SECRET)) if mine else None

    h.executor.fail_step = fail


def at_submit(h: Harness) -> None:
    """Failures are raised where a step is submitted, and not where its result is asked for."""
    submit = h.executor.submit

    def raising(plan: StepPlan) -> Any:
        handle = submit(plan)
        handle.result()
        return handle

    h.executor.submit = raising  # type: ignore[method-assign]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("submitting", [False, True])
def test_steps_that_fail_once_or_twice_in_a_row_cost_nobody(
    depth: int, kind: str, first: int, count: int, submitting: bool
) -> None:
    h = Harness(num_pages=40, depth=depth)
    if submitting:
        at_submit(h)
    for number in range(3):
        h.add([number + 1] * 9, PARAMS[kind])
    for _ in range(first):
        h.step()
    failures = [RuntimeError("once")] * count
    h.executor.fail_step = lambda plan: failures.pop() if failures else None
    h.drain_and_check()
    assert not failures
    assert "error" not in h.reasons.values()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("first", [0, 1, 3])
def test_the_request_that_fails_alone_ends_and_the_others_go_on(
    depth: int, caching: bool, kind: str, first: int
) -> None:
    h = Harness(num_pages=40, depth=depth, max_num_seqs=6, enable_prefix_caching=caching)
    names = [h.add([number + 1] * 9, PARAMS[kind]) for number in range(4)]
    for _ in range(first):
        h.step()
    poison(h, names[2])
    h.run()
    for (name, _), reason in h.reasons.items():
        assert (reason == "error") == (name == names[2])
    h.drain_and_check()


def test_of_two_that_fail_both_end() -> None:
    h = Harness(num_pages=40, depth=2, max_num_seqs=5)
    names = [h.add([number + 1] * 9) for number in range(5)]
    poison(h, names[0], names[3])
    h.run()
    assert [h.reasons[name, 0] for name in names] == ["error", "length", "length", "error", "length"]


def test_suspects_are_computed_alone_and_others_wait() -> None:
    h = Harness(num_pages=40, max_num_seqs=3, max_num_batched_tokens=40)
    for number in range(3):
        h.add([number + 1] * 9)
    h.step()
    failures = [RuntimeError("once")]
    h.executor.fail_step = lambda plan: failures.pop() if failures else None
    h.step()
    later = h.add([9] * 9)  # is no suspect, and waits nevertheless
    begin = len(h.executor.plans)
    for _ in range(3):
        h.step()
    alone = h.executor.plans[begin:]
    assert [len(plan.steps) for plan in alone] == [1, 1, 1]
    assert [sum(step.count for step in plan.steps) for plan in alone] == [2, 2, 2]  # cached pages were kept
    assert h.state(later) is RequestState.WAITING
    h.drain_and_check()


def test_a_suspect_that_is_aborted_holds_nobody_up() -> None:
    h = Harness(num_pages=40)
    names = [h.add([number + 1] * 9) for number in range(3)]
    poison(h, names[0])
    h.step()
    for name in names[:2]:
        h.abort(name)
    h.drain_and_check()
    assert h.reasons[names[2], 0] == "length"


@pytest.mark.parametrize("error", [OSError(5, "a secret path", SECRET), RuntimeError(SECRET)])
def test_clients_hear_neither_path_nor_type_and_the_log_both(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    h = Harness(num_pages=40)
    name = h.add([1] * 9)
    poison(h, name, error=error)
    updates = [update for _ in range(TRIES) for update in h.step()]
    assert [update.stop_reason for update in updates] == [FAILED]
    assert SECRET not in FAILED
    assert SECRET in caplog.text
    assert type(error).__name__ in caplog.text
    assert name in caplog.text
    h.drain_and_check()


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_executor_that_computes_nothing_ends_the_engine(requests: int, depth: int) -> None:
    """After so many steps; before that its clients have waited for nothing else."""
    h = Harness(num_pages=40, depth=depth)
    h.executor.fail_step = lambda plan: RuntimeError("gone")
    for number in range(requests + 1):
        h.add([number + 1, 2])
    with pytest.raises(
        EngineDeadError, match=r"steps in a row failed, the last one a single token's: Runtime.*gone"
    ):
        h.run()
    assert len(h.executor.plans) <= MAX_FAILED_STEPS + TRIES + depth


def test_poisons_one_after_the_other_do_not_end_the_engine() -> None:
    h = Harness(num_pages=40)
    for _ in range(3 * MAX_FAILED_STEPS):
        name = h.add([1] * 9)
        poison(h, name)
        h.run()
        assert h.reasons[name, 0] == "error"
    h.drain_and_check()


def test_the_engines_own_step_leaves_nothing_behind() -> None:
    """Also where an encoder reads first, and where no page is free but what is cached."""
    for options in ({"max_encoder_len": 4}, {"num_pages": 10}, {"enable_prefix_caching": False}):
        h = Harness(**({"num_pages": 40} | options))
        source = [1, 2] if "max_encoder_len" in options else []
        for _ in range(MAX_FAILED_STEPS):
            name = h.add([1] * 30, encoder=source)
            poison(h, name)
            h.run()
        assert h.core.failed_steps == 0
        h.drain_and_check()


def test_a_device_that_is_lost_ends_the_engine_at_once() -> None:
    h = Harness(num_pages=40)
    h.add([1] * 9)
    h.executor.fail_step = lambda plan: DeviceLostError("the GPU can no longer be used")
    with pytest.raises(EngineDeadError, match="the GPU can no longer be used"):
        h.step()


def test_a_request_whose_steps_never_fit_ends_alone_and_says_so() -> None:
    h = Harness(num_pages=40, depth=2)
    good, bad = h.add([1] * 9), h.add([2] * 9)
    poison(h, bad, error=StepTooLargeError("the GPU has no memory for this step"))
    ends = []
    while h.core.has_unfinished():
        ends += [u.stop_reason for u in h.step() if u.finish_reason == "error"]
    assert ends == ["the GPU has no memory for this step"]
    assert h.reasons[good, 0] == "length"
    h.drain_and_check()


class Panic(BaseException):
    """As pyo3_runtime.PanicException: no Exception."""


def test_a_panic_is_an_error_of_its_request() -> None:
    async def scenario() -> None:
        async with house() as h:
            panics = [Panic("rust")] * 10

            def fail(plan: StepPlan) -> BaseException | None:
                rows = {row: entered.new.request_id for row, entered in h.executor.rows.items()}
                rows |= {new.row: new.request_id for new in plan.new_rows}
                return panics.pop() if any(rows.get(s.row) == "bad" for s in plan.steps) else None

            h.executor.fail_step = fail
            bad, good = h.begin("bad", [1, 2]), h.begin("good", [3, 4])
            with pytest.raises(RequestFailedError, match=f"^{FAILED}$"):
                await bad
            assert (await good)[-1].outputs[0].token_ids == expected([3, 4])
            assert h.engine.healthy

    run(scenario)


def test_ctrl_c_is_no_fault_of_a_step() -> None:
    h = Harness(num_pages=40)
    h.add([1] * 9)
    for strike in (KeyboardInterrupt(), Panic()):  # on the main thread: a signal handler's
        h.executor.fail_step = lambda plan, strike=strike: strike  # type: ignore[misc]
        with pytest.raises(type(strike)):
            h.step()


# --- at random --------------------------------------------------------------------------------------


def storm(seed: int) -> Harness:
    """A random engine in which steps fail, once or for a request, between other operations."""
    rng = random.Random(seed)
    h = random_harness(rng, encoder=seed % 4 == 0, disk=seed % 4 == 1, mixed=seed % 4 == 2)
    if rng.random() < 0.3:
        at_submit(h)
    bad: list[str] = []
    for _ in range(60):
        choice = rng.random()
        if choice < 0.35:
            limit = h.config.max_model_len - 1
            params = SamplingParams(
                n=rng.choice((1, 1, 2)), max_tokens=rng.randint(1, 12), seed=rng.randrange(99),
                temperature=rng.choice((0.0, 1.0)),
            )  # fmt: skip
            source = [1] * h.config.max_encoder_len
            try:
                name = h.add(random_prompt(rng, limit), params, encoder=source)
            except Exception:  # full
                name = ""
            if name and rng.random() < 0.2:
                bad.append(name)
                poison(h, *bad)
        elif choice < 0.42 and h.unfinished():
            h.abort(*rng.choice(h.unfinished()))
        elif choice < 0.5 and not h.core.recovery.pending:  # (three of its own would be a request's end)
            left, before = [RuntimeError("once")] * rng.randint(1, 2), h.executor.fail_step
            h.executor.fail_step = lambda plan, left=left: left.pop() if left else None  # type: ignore[misc]
            while left and h.core.has_unfinished():
                h.step()
            h.executor.fail_step = before
        else:
            h.step()
    h.run()
    wrong = [key for key, reason in h.reasons.items() if reason == "error" and key[0] not in bad]
    assert not wrong, "a request ended for another one's fault"
    h.drain_and_check()
    return h


def test_random_faults_end_nobody_else() -> None:
    engines = [storm(seed) for seed in range(60)]
    reasons = [reason for h in engines for reason in h.reasons.values()]
    assert min(reasons.count(reason) for reason in ("error", "length", "stop", "abort")) > 10
    assert sum(h.scheduler.num_preemptions for h in engines) > 100


def blame_the_first(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: StepRetries, plan: StepPlan, error: BaseException, later: Any) -> Any:
        taken = [Suspect(r, until) for r, until in self._take_back(plan, False).items()]
        self.pending += taken[:1]
        return self._blame(taken[0], error) if taken else []

    patch.setattr(StepRetries, "failed", mutant)


def keep_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    failed = StepRetries.failed
    patch.setattr(
        StepRetries, "failed", lambda self, plan, error, later: failed(self, plan, error, type(later)())
    )


def leave_them_running(patch: pytest.MonkeyPatch) -> None:
    """Their rows and pages may hold anything after a failed step."""
    patch.setattr(StepRetries, "_put_back", lambda self, requests: None)


def clear_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Suspect, "cleared", property(lambda self: True))


def forget_the_engines_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepRetries, "_probe", lambda self: None)


@pytest.mark.parametrize("mutate", [blame_the_first, keep_what_is_in_flight, leave_them_running])
def test_random_faults_find(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    must_be_noticed(storm, 60)


@pytest.mark.parametrize(
    ("mutate", "test"),
    [
        (clear_at_once, test_suspects_are_computed_alone_and_others_wait),
        (forget_the_engines_own, lambda: test_an_executor_that_computes_nothing_ends_the_engine(1, 1)),
    ],
)
def test_tests_find(
    mutate: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
        test()
