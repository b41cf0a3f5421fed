"""Two steps in flight on a device that answers late: the same tokens and log-probabilities as in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.engine.core import EngineCore
from octavo.errors import DeviceLostError, EngineDeadError, StepTooLargeError
from octavo.params import SamplingParams
from octavo.runtime.overlap import OverlappedRunner
from support.crowds import Crowd
from support.late_device import Queue
from support.tiny_engine import Answers, run, save_tiny_llama, tiny_engine

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
SAMPLED = SamplingParams(temperature=1, seed=5, max_tokens=20, logprobs=0)
PENALIZED = SamplingParams(temperature=1, seed=3, max_tokens=12, repetition_penalty=1.4, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("late"))


def test_crowds_say_what_each_says_alone(folder: Path) -> None:
    """Batches, chunks, cache, preemption, swaps, beams, aborts, penalties: equal ids and logprob bits."""
    happened: Counter[str] = Counter()
    for seed in range(60):
        queue = Queue()
        crowd = Crowd(folder, seed, queue).meet()
        assert crowd.differing == [], seed
        happened += crowd.happened
        happened["overlaps"] += queue.overlaps
    wanted = "compared", "preempted", "tokens from the cache", "steps with pages swapped out", "overlaps"
    for what in wanted:
        assert happened[what] > 10, what


def runner_of(core: EngineCore) -> OverlappedRunner:
    runner: Any = core._executor
    assert isinstance(runner, OverlappedRunner)
    return runner


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_a_step_is_launched_while_another_waits(folder: Path, params: SamplingParams) -> None:
    """Also where the draw depends on the token before: the forward is queued all the same."""
    queue = Queue()
    late = run(tiny_engine(folder, depth=2, late=queue), [5, 6, 7], params)
    assert late == run(tiny_engine(folder), [5, 6, 7], params)
    assert queue.overlaps > 5


def test_an_end_is_known_one_step_late(folder: Path) -> None:
    """A row that ended is computed once more; the token is dropped, pages and rows are free again."""
    core = tiny_engine(folder, depth=2, late=Queue(), enable_prefix_caching=False)
    known = run(tiny_engine(folder), [9, 8, 7], GREEDY)[0][0]
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[known[3]])
    tokens, _, reason = run(core, [9, 8, 7], params)[0]
    assert tokens == known[: known.index(known[3]) + 1]
    assert reason == "stop"
    assert core.stats().kv_usage == 0
    assert core.stats().steps > len(tokens)


def test_what_the_device_lacks_is_drawn_here(folder: Path) -> None:
    """Together with rows that the device could draw for."""
    wanted = {str(i): SamplingParams(temperature=1, seed=i, max_tokens=9, logprobs=i) for i in range(4)}
    core = tiny_engine(folder, depth=2, late=Queue())
    runner = runner_of(core)
    runner._steps.most_logprobs = 2  # type: ignore[attr-defined]
    answers = Answers()
    for name, params in wanted.items():
        core.add_request(name, [4, int(name) + 3], params)
    while core.has_unfinished():
        answers.take(core.step())
    for name, params in wanted.items():
        assert answers.of(name) == run(tiny_engine(folder), [4, int(name) + 3], params)[0]
    assert runner.left_to_host["so many log-probabilities"] > 3


def early(steps: Any, rows: Any, batch: Any) -> Any:
    return np.full(batch.num_tokens, -1, np.int32)


@pytest.mark.parametrize("mutant", ["no sources", "rows forget their occupants"])
def test_mutants_are_caught(folder: Path, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "no sources":
        monkeypatch.setattr(OverlappedRunner, "_sources", early)
    else:
        monkeypatch.setattr(OverlappedRunner, "occupancy", lambda self, row: 0)

    def differs() -> bool:
        for seed in range(40):
            try:
                if Crowd(folder, seed, Queue()).meet().differing:
                    return True
            except AssertionError:
                return True
        return False

    assert differs()


def to_the_end(core: EngineCore) -> None:
    while core.has_unfinished():
        core.step()


def at(number: int, error: Exception) -> Callable[[int], None]:
    def fail(launch: int) -> None:
        if launch == number:
            raise error

    return fail


def test_a_device_that_vanishes_ends_the_engine_at_once(folder: Path) -> None:
    queue = Queue()
    queue.fail = at(4, DeviceLostError("the GPU can no longer be used (Xid 79)"))
    core = tiny_engine(folder, depth=2, late=queue)
    core.add_request("a", [3, 4], GREEDY)
    with pytest.raises(EngineDeadError, match="the GPU can no longer be used"):
        to_the_end(core)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_step_without_memory_is_done_in_smaller_ones(folder: Path, number: int, depth: int) -> None:
    """Its requests go back and are computed again; their answers are the same to the bit."""
    queue = Queue()
    queue.fail = at(number, StepTooLargeError("the GPU has no memory for this step"))
    core = tiny_engine(folder, depth=depth, late=queue)
    prompts = {str(i): [50 + i, *range(3, 20 + 9 * i)] for i in range(4)}
    for name, prompt in prompts.items():
        core.add_request(name, prompt, SAMPLED)
    answers = Answers()
    while core.has_unfinished():
        answers.take(core.step())
        core.check_integrity()
    for name, prompt in prompts.items():
        assert answers.of(name) == run(tiny_engine(folder), prompt, SAMPLED)[0]
    assert core.stats().preemptions > 0


def test_a_request_that_never_fits_says_so(folder: Path) -> None:
    queue = Queue()

    def fail(launch: int) -> None:
        raise StepTooLargeError("the GPU has no memory for this step")

    queue.fail = fail
    core = tiny_engine(folder, depth=2, late=queue)
    for name in "ab":
        core.add_request(name, [3] * 40, GREEDY)
    reasons = {}
    while core.has_unfinished():
        for update in core.step():
            reasons[update.request_id] = update.finish_reason, str(update.stop_reason)
        core.check_integrity()
    assert {reason for reason, _ in reasons.values()} == {"error"}
    assert all("no memory for this step" in text for _, text in reasons.values())
    queue.fail = lambda number: None
    assert run(core, [3, 4, 5], GREEDY) == run(tiny_engine(folder), [3, 4, 5], GREEDY)
