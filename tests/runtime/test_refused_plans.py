"""A plan that a runner cannot execute is refused; nothing is computed on zeros, nor on what is not drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.engine.step_plan import NewRow, RowStep, StepPlan
from octavo.params import SamplingParams
from octavo.runtime.model_runner import ModelRunner
from octavo.runtime.overlap import OverlappedRunner
from support.late_device import Queue
from support.tiny_engine import save_tiny_llama, tiny_engine

SCORED = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MakeRunner = Callable[[SamplingParams], ModelRunner]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("refused"))


@pytest.fixture(params=["plain", "overlapped"])
def make(request: pytest.FixtureRequest, folder: Path) -> MakeRunner:
    """A runner whose row 0 has a prompt of three tokens, computed, and one drawn after it."""

    def runner(params: SamplingParams) -> ModelRunner:
        late: dict[str, Any] = {"depth": 2, "late": Queue()} if request.param == "overlapped" else {}
        made: Any = tiny_engine(folder, **late)._executor
        assert isinstance(made, OverlappedRunner) is (request.param == "overlapped")
        new = NewRow(0, "a", (5, 6, 7), 3, params, 0, 0)
        made.submit(StepPlan(1, (), (new,), (RowStep(0, 0, 3, (0,), True),))).result()
        return made  # type: ignore[no-any-return]

    return runner


def submit(runner: ModelRunner, step: RowStep) -> int:
    """The token that the step draws."""
    return runner.submit(StepPlan(2, (), (), (step,))).result().tokens[step.row][0].token_id


BAD = [
    (RowStep(0, 3, 2, (), True, drafts=(9,)), "row 0: this runner verifies no drafts"),
    (RowStep(0, 1, 2, (), True, drafts=(9,)), "row 0: this runner verifies no drafts"),
    (RowStep(0, 3, 2, (), True), r"row 0: positions \[3, 5\) go beyond its 4 tokens"),
    (RowStep(0, 9, 2, (), False), r"row 0: positions \[9, 11\) go beyond its 4 tokens"),
    (RowStep(0, 4, 1, (), True), "position"),
    (RowStep(1, 0, 1, (), True), "position"),
    (RowStep(1, 0, 2, (), True), r"row 1: positions \[0, 2\) go beyond its 0 tokens"),
]


@pytest.mark.parametrize("params", [GREEDY, SCORED], ids=["greedy", "scored"])
@pytest.mark.parametrize(("step", "message"), BAD)
def test_what_nobody_knows_is_not_computed(
    make: MakeRunner, params: SamplingParams, step: RowStep, message: str
) -> None:
    runner, twin = make(params), make(params)
    with pytest.raises(ValueError, match=message):
        submit(runner, step)
    good = RowStep(0, 3, 1, (), True)
    assert submit(runner, good) == submit(twin, good)


def test_a_token_on_its_way_is_known_where_it_is_drawn(folder: Path) -> None:
    """The step after it may be submitted before it is here, the one after that may not."""
    runner: Any = tiny_engine(folder, depth=2, late=Queue())._executor
    new = NewRow(0, "a", (5, 6, 7), 3, GREEDY, 0, 0)
    first = runner.submit(StepPlan(1, (), (new,), (RowStep(0, 0, 3, (0,), True),)))
    with pytest.raises(ValueError, match=r"\[4, 5\) go beyond its 4 tokens"):
        runner.submit(StepPlan(2, (), (), (RowStep(0, 4, 1, (), True),)))
    second = runner.submit(StepPlan(3, (), (), (RowStep(0, 3, 1, (), True),)))
    first.result()
    second.result()
    assert runner._coming[0] == 0
    runner.submit(StepPlan(4, (), (), (RowStep(0, 4, 1, (), True),))).result()


@pytest.mark.parametrize("mutant", ["never counted", "never taken away"])
def test_mutants_show(folder: Path, mutant: str) -> None:
    """A step in flight is refused, or one that goes beyond what is drawn is computed."""

    class Stuck(np.ndarray[Any, np.dtype[np.int64]]):
        def __setitem__(self, key: Any, value: Any) -> None:
            rises = bool(np.all(np.asarray(value) >= self[key]))
            if rises == (mutant == "never taken away"):
                super().__setitem__(key, value)

    runner: Any = tiny_engine(folder, depth=2, late=Queue())._executor
    runner._coming = np.zeros_like(runner._coming).view(Stuck)
    new = NewRow(0, "a", (5, 6, 7), 3, GREEDY, 0, 0)
    first = runner.submit(StepPlan(1, (), (new,), (RowStep(0, 0, 3, (0,), True),)))
    follow = StepPlan(2, (), (), (RowStep(0, 3, 1, (), True),))
    if mutant == "never counted":
        with pytest.raises(ValueError, match="go beyond"):
            runner.submit(follow)
        return
    first.result()
    runner.submit(StepPlan(2, (), (), (RowStep(0, 4, 1, (), True),))).result()
