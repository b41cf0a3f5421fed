"""LLM where something strikes in the midst of a call: Ctrl-C, a signal handler's exception, a failing step,
another thread. The next call is answered as by a fresh engine."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import octavo
from octavo import LLM
from octavo.engine.core import EngineCore
from octavo.engine.scheduler import Scheduler
from octavo.engine.step_plan import StepPlan, StepResult
from octavo.errors import EngineDeadError, InvalidRequestError, OctavoError
from octavo.params import BeamSearchParams, SamplingParams
from octavo.runtime.runner import Done
from support.late_device import Queue
from support.tiny_engine import BACKENDS, run, save_tiny_llama, save_words, tiny_engine

OPTIONS: dict[str, Any] = {"backend": BACKENDS[0], "threads": 1, "max_model_len": 128, "page_size": 16}
# So few pages that requests are preempted, and cached prefixes evicted.
TIGHT = OPTIONS | {"num_pages": 12, "max_num_seqs": 4, "swap_space": 0.001}
PROMPTS = [[5] * 20, [7] * 40, [5] * 18 + [9] * 9, [11] * 20]
DRAWN = SamplingParams(max_tokens=12, temperature=0.9, seed=3, ignore_eos=True)
PARAMS = [
    DRAWN.replace(n=2, logprobs=2),
    DRAWN.replace(prompt_logprobs=1),
    DRAWN.replace(repetition_penalty=1.3, min_tokens=4, allowed_token_ids=range(3, 60)),
    SamplingParams(max_tokens=6, beam_search=BeamSearchParams(2, 6)),
]
STRIKES = 40


class Strike(BaseException):
    """What no `except Exception` holds up, as KeyboardInterrupt."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(save_tiny_llama(tmp_path_factory.mktemp("tiny-llama")))


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """SIGINT raises: what a script starts in its background inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def llm(folder: Path, as_in_a_terminal: None) -> Iterator[LLM]:
    made = LLM(str(folder), **OPTIONS)
    yield made
    made._core.check_integrity()
    assert made.get_metrics().running == made.get_metrics().waiting == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def answers(llm: LLM) -> list[Any]:
    """All that is drawn, to the bit."""
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids in PROMPTS]
    return [
        [(c.token_ids, c.logprobs, c.finish_reason) for c in output.outputs]
        for output in llm.generate(prompts, PARAMS)
    ]


def one(llm: LLM) -> list[int]:
    greedy = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    return llm.generate({"prompt_token_ids": [5] * 20}, greedy)[0].outputs[0].token_ids


# --- exceptions from the midst of a step --------------------------------------------------------------------

ROOMS = tuple(str(Path(octavo.__file__).parent / room) for room in ("engine", "runtime", "sampling"))


def events(work: Callable[[], object], strike_at: int = -1, rooms: tuple[str, ...] = ROOMS) -> int:
    """Do some work; how often it calls or leaves a function in these rooms, built in ones included. At the
    event of this number an exception strikes, as a signal handler's would."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if frame.f_code.co_filename.startswith(rooms):
            count += 1
            if count == strike_at:
                sys.setprofile(None)
                raise Strike

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def places(total: int) -> list[int]:
    """Some of so many events, from the first to the last."""
    return [1 + at * (total - 1) // (STRIKES - 1) for at in range(STRIKES)]


# What strikes where a generator is closed is ignored by Python, and then the call goes on.
IGNORED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@IGNORED
@pytest.mark.parametrize("disk", [False, True])
def test_whatever_it_strikes_the_next_call_is_answered(folder: Path, tmp_path: Path, disk: bool) -> None:
    where: dict[str, Any] = {}
    if disk:
        where = {"prefix_cache_dir": str(tmp_path), "prefix_cache_disk_space": 0.001}
    expected = answers(LLM(str(folder), **TIGHT))
    llm = LLM(str(folder), **TIGHT, **where)
    total = events(lambda: answers(llm))
    struck = 0
    for at in places(total):
        try:
            events(lambda: answers(llm), at)
        except Strike:
            struck += 1
        llm._core.check_integrity()
        assert not llm._core.has_unfinished()
        assert answers(llm) == expected, f"struck at event {at} of {total}"
        llm._core.check_integrity()
    assert struck > STRIKES // 2
    llm.shutdown()


@IGNORED
def test_on_a_device_whose_steps_overlap(folder: Path) -> None:
    """Two steps in flight, of which one may be known to the device and to nobody else any more."""

    def fresh() -> EngineCore:
        return tiny_engine(folder, BACKENDS[0], depth=2, late=Queue(), num_pages=12)

    def crowd(core: EngineCore) -> None:
        for number, ids in enumerate(PROMPTS):
            core.add_request(f"{number}", ids, DRAWN.replace(seed=number))
        while core.has_unfinished():
            core.step()

    params = DRAWN.replace(repetition_penalty=1.3)
    core, expected = fresh(), run(fresh(), PROMPTS[0], params)
    host = ROOMS[:2]  # the device's work, which includes sampling, is not torn in two
    struck = 0
    for at in places(events(lambda: crowd(fresh()), rooms=host)):
        try:
            events(lambda: crowd(core), at, host)
        except Strike:
            struck += 1
        core.restart(lambda: Scheduler(core.config))
        core.check_integrity()
        assert run(core, PROMPTS[0], params) == expected, f"struck at event {at}"
    assert struck > STRIKES // 2


def raises(error: BaseException, real: Callable[..., Any], after: bool) -> Callable[..., Any]:
    """The first call raises, before or after it has done its work."""
    left = [error]

    def function(*args: Any, **kwargs: Any) -> Any:
        if left and not after:
            raise left.pop()
        result = real(*args, **kwargs)
        if left:
            raise left.pop()
        return result

    return function


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", ["_core.add", "_core.scheduler.schedule", "_core._executor.submit",
                                   "_core.scheduler.update", "_core.abort", "_texts.open"])  # fmt: skip
def test_a_keyboard_interrupt_costs_one_call(llm: LLM, where: str, after: bool) -> None:
    expected, parts = one(llm), where.split(".")
    owner: Any = llm
    for part in parts[:-1]:
        owner = getattr(owner, part)
    struck = owner
    if parts[-1] == "open":  # a frozen object
        llm._texts = struck = type("Texts", (), {"open": owner.open})()
    real = getattr(struck, parts[-1])
    setattr(struck, parts[-1], raises(KeyboardInterrupt(), real, after))
    stops = SamplingParams(max_tokens=6, temperature=0, stop=["w"], ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        llm.generate({"prompt_token_ids": [5] * 20}, stops)
    setattr(struck, parts[-1], real)
    assert one(llm) == expected
    assert llm.embed([[5] * 20])[0].outputs.embedding


# --- Ctrl-C -------------------------------------------------------------------------------------------------


def interrupted(llm: LLM, times: int, patch: pytest.MonkeyPatch) -> list[StepPlan]:
    """Have Ctrl-C come so often before the second step is computed. Returns the steps that were submitted."""
    submit, begun, done = llm._core._executor.submit, [0], list[StepPlan]()

    def submit_interrupted(plan: StepPlan) -> Any:
        begun[0] += 1
        if begun[0] == 2:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        done.append(plan)
        return submit(plan)

    patch.setattr(llm._core._executor, "submit", submit_interrupted)
    return done


def test_the_first_ctrl_c_lets_the_step_end(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, scheduler = one(llm), llm._core.scheduler
    with monkeypatch.context() as patch:
        done = interrupted(llm, 1, patch)
        with pytest.raises(KeyboardInterrupt):
            one(llm)
    assert len(done) == 2
    assert llm._core.scheduler is scheduler, "the cached prefixes are still there"
    assert one(llm) == expected


def test_the_second_ctrl_c_does_not_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = one(llm)
    with monkeypatch.context() as patch:
        done = interrupted(llm, 2, patch)
        with pytest.raises(KeyboardInterrupt):
            one(llm)
    assert len(done) == 1
    assert one(llm) == expected


def test_a_handler_of_somebody_else_is_called_between_steps(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, came = one(llm), list[bool]()
    former = signal.signal(signal.SIGINT, lambda *_: came.append(llm._sound))
    try:
        with monkeypatch.context() as patch:
            done = interrupted(llm, 1, patch)
            assert one(llm) == expected
        assert came == [True]
        assert len(done) > 2
        with monkeypatch.context() as patch:
            interrupted(llm, 2, patch)
            assert one(llm) == expected
        assert came[1:] == [False, True], "the second at once, the first when it was held back for"
    finally:
        signal.signal(signal.SIGINT, former)


def test_ctrl_c_in_the_last_step_is_not_lost(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    done = interrupted(llm, 1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        llm.generate({"prompt_token_ids": [5] * 20}, SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(done) == 2


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_no_function_is_left_alone(llm: LLM, handler: signal.Handlers) -> None:
    seen: list[Any] = []
    submit = llm._core._executor.submit

    def look(plan: StepPlan) -> Any:
        seen.append(signal.getsignal(signal.SIGINT))
        return submit(plan)

    llm._core._executor.submit = look  # type: ignore[method-assign]
    former = signal.signal(signal.SIGINT, handler)
    try:
        one(llm)
    finally:
        signal.signal(signal.SIGINT, former)
    assert set(seen) == {handler}


# --- steps that fail ----------------------------------------------------------------------------------------


class HandlerError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (HandlerError(), "the step of this request failed: HandlerError"),
        (HandlerError("\n"), "the step of this request failed: HandlerError"),
        (HandlerError("too late\nfor this"), "the step of this request failed: HandlerError: too late"),
    ],
)
@pytest.mark.parametrize("at", ["submit", "result"])
def test_why_a_step_failed_is_kept(
    llm: LLM, at: str, error: HandlerError, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, computes = one(llm), llm._core._executor.submit

    class Fails:
        def result(self) -> StepResult:
            raise error

    def submit(plan: StepPlan) -> Any:
        if any(new.request_id == "" for new in plan.new_rows):  # the engine's own, of a single token
            return computes(plan)
        if at == "submit":
            raise error
        return Fails()

    with monkeypatch.context() as patch:
        patch.setattr(llm._core._executor, "submit", submit)
        with pytest.raises(OctavoError, match=rf"^request \d+ failed: {text}$") as caught:
            one(llm)
    assert caught.value.__cause__ is error

    def all_fail(plan: StepPlan) -> Done:
        return Done(StepResult(plan.step_id, {}, {step.row: "no number" for step in plan.steps}))

    with monkeypatch.context() as patch:
        patch.setattr(llm._core._executor, "submit", all_fail)
        with pytest.raises(OctavoError, match="failed: no number") as caught:
            one(llm)
    assert caught.value.__cause__ is None, "a row that failed is no step that did"
    assert one(llm) == expected


def test_an_executor_that_was_broken_may_be_whole_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = one(llm)

    def submit(plan: StepPlan) -> Any:
        raise HandlerError

    with monkeypatch.context() as patch:
        patch.setattr(llm._core._executor, "submit", submit)
        with pytest.raises(EngineDeadError, match=r"steps in a row failed, the last .*: HandlerError$"):
            one(llm)
    assert one(llm) == expected


# --- other threads ------------------------------------------------------------------------------------------


def test_calls_of_other_threads_wait_their_turn(llm: LLM) -> None:
    expected = one(llm)
    found: list[Any] = []

    def work() -> None:
        try:
            found.extend(one(llm) for _ in range(3))
            llm.reset_prefix_cache()
            llm.embed([[5] * 20])
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 12


@pytest.mark.parametrize("call", ["generate", "embed", "reset_prefix_cache", "shutdown"])
def test_a_call_from_inside_another_one_is_refused(
    llm: LLM, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, submit = one(llm), llm._core._executor.submit
    arguments = ([[5] * 20],) if call in ("generate", "embed") else ()

    def again(plan: StepPlan) -> Any:
        with pytest.raises(InvalidRequestError, match="in the midst of a call of the same thread"):
            getattr(llm, call)(*arguments)
        return submit(plan)

    monkeypatch.setattr(llm._core._executor, "submit", again)
    assert one(llm) == expected
