"""Fitting a CostModel to measured steps."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.bench.workload import random_prompts
from octavo.engine.cost import CostModel
from octavo.engine.step_plan import StepPlan, StepResult, counted

if TYPE_CHECKING:
    from octavo.bench.driver import Driver

Features = tuple[float, float, float, float]


def features(plan: StepPlan) -> Features:
    """What the cost model multiplies by its four numbers."""
    tokens, sampled, pairs = counted(plan.steps)
    return 1.0, float(tokens), pairs, float(sampled)


def fit(rows: Sequence[Features], seconds: Sequence[float]) -> CostModel:
    """The non-negative numbers with the least squared relative error.

    Raises:
        ValueError: fewer than four steps were measured.
    """
    if len(rows) < 4:
        raise ValueError("at least four steps are needed")
    wanted = np.asarray(seconds, np.float64)
    matrix = np.asarray(rows, np.float64) / wanted[:, None]
    active = list(range(4))
    while True:
        solution = np.zeros(4)
        solution[active] = np.linalg.lstsq(matrix[:, active], np.ones(len(rows)), rcond=None)[0]
        worst = min(active, key=lambda i: solution[i] * matrix[:, i].mean())
        if solution[worst] >= 0:
            break
        active.remove(worst)  # it explains nothing
    error = float(np.median(np.abs(matrix @ solution - 1)))
    return dataclasses.replace(CostModel(*map(float, solution)), error=error)


SHAPES = ((1, 32), (1, 512), (4, 128), (8, 32), (16, 64), (32, 16), (2, 1024))
"""(prompts, their tokens) that calibrate() runs, as far as they fit into the engine."""


def calibrate(driver: Driver, new_tokens: int = 12, repeat: int = 3) -> CostModel:
    """Fit a cost model to steps of the real engine: prompts and decoding of several sizes."""
    samples: dict[Features, list[float]] = {}
    config = driver.loaded.config
    for number in range(repeat + 1):
        for count, length in SHAPES:
            if count > config.max_num_seqs or length + new_tokens > config.max_model_len:
                continue
            if count * (length + new_tokens) > config.num_pages * config.page_size:
                continue
            recorder = _StepTimes(driver)
            prompts = random_prompts(count, length, driver.vocab_size, seed=number)
            run = driver.run(prompts, new_tokens)
            times = [step.seconds for step in (*run.prompt, *run.decode)]
            if number:  # the first round warms up
                for plan, seconds in zip(recorder.stop(), times, strict=True):
                    samples.setdefault(features(plan), []).append(seconds)
            else:
                recorder.stop()
    return fit(list(samples), [statistics.median(times) for times in samples.values()])


class _StepTimes:
    """Notes the plans that a driver's runner executes until stop()."""

    def __init__(self, driver: Driver) -> None:
        self._runner = driver.loaded.runner
        self._execute = self._runner.execute
        self._plans: list[StepPlan] = []
        # The engine holds this very runner, so it is listened to in its place.
        self._runner.execute = self._note  # type: ignore[method-assign]  # listened to until stop()

    def _note(self, plan: StepPlan) -> StepResult:
        self._plans.append(plan)
        return self._execute(plan)

    def stop(self) -> list[StepPlan]:
        self._runner.execute = self._execute  # type: ignore[method-assign]  # as it was
        return self._plans
