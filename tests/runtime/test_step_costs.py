"""Steps are measured before the first request, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from octavo.params import SamplingParams
from octavo.runtime import step_costs
from octavo.runtime.step_costs import StepCosts
from octavo.spec.costs import Load
from support.late_device import Queue
from support.scripted import Scripted
from support.tiny_engine import VOCAB_SIZE, run, save_tiny_llama, save_tiny_mixed, tiny_engine

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("costs"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_mixed(tmp_path_factory.mktemp("mixed"), 24)


def costs_of(core: Any, most: int, **options: int) -> StepCosts:
    return StepCosts(core._executor, page_size=16, num_pages=10, most=most, max_model_len=160, **options)


@pytest.mark.parametrize("late", [False, True])
def test_an_engine_answers_as_if_nothing_had_been_measured(folder: Path, late: bool) -> None:
    """Seconds are positive and of every number of tokens; the proposer has heard of no row."""
    proposer = Scripted(Random(0), VOCAB_SIZE)
    more: dict[str, Any] = {"depth": 2, "late": Queue()} if late else {}
    core = tiny_engine(folder, speculate=(proposer, 4), max_sampled_rows=64, **more)
    table = costs_of(core, 64).table()
    for count in (1, 2, 5, 32, 64):
        assert min(table.seconds(Load(count, count)), table.seconds(Load(count, 1))) > 0
    assert table.pair_s >= 0
    assert proposer.rows == {}
    core.scheduler.name_free_rows()
    assert run(core, [5, 6, 7, 8], GREEDY) == run(tiny_engine(folder), [5, 6, 7, 8], GREEDY)


def test_sliding_pages_are_measured_too(mixed: Path) -> None:
    core = tiny_engine(
        mixed, speculate=(Scripted(Random(0), VOCAB_SIZE), 4), max_sampled_rows=32, sliding_window=24,
        num_sliding_pages=8, max_num_batched_tokens=32,
    )  # fmt: skip
    assert costs_of(core, 32, num_sliding_pages=8).table().seconds(Load(4, 4)) > 0
    assert run(core, [5, 6, 7, 8], GREEDY) == run(tiny_engine(mixed), [5, 6, 7, 8], GREEDY)


def test_a_slow_model_is_measured_at_fewer_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token always; the others while there is time."""
    monkeypatch.setattr(step_costs, "SECONDS", 0.0)
    core = tiny_engine(folder, speculate=(Scripted(Random(0), VOCAB_SIZE), 4), max_sampled_rows=64)
    plans: list[Any] = []
    runner: Any = core._executor
    submit = runner.submit
    runner.submit = lambda plan: plans.append(plan) or submit(plan)
    costs_of(core, 64).table()
    assert {step.count for plan in plans for step in plan.steps} == {1}
