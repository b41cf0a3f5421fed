"""The cost model: what it says of a plan, and what it learns from steps."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from octavo.bench.driver import Driver
from octavo.engine.cost import CostModel
from octavo.engine.step_plan import RowStep, StepPlan, counted
from octavo.errors import InvalidRequestError
from octavo.lab.cost import calibrate, features, fit

TRUE = CostModel(2e-3, 3e-4, 1e-8, 5e-5)


def plan(*steps: tuple[int, int, bool]) -> StepPlan:
    """Steps as (start, count, sample)."""
    return StepPlan(0, (), (), tuple(RowStep(i, *s[:2], (), s[2]) for i, s in enumerate(steps)))


def random_plan(draw: random.Random) -> StepPlan:
    rows = draw.randint(1, 30)
    return plan(*((draw.randrange(4000), draw.choice((1, 1, 64)), draw.random() < 0.8) for _ in range(rows)))


def test_a_step_by_hand() -> None:
    step = plan((0, 4, False), (9, 1, True))
    assert features(step) == (1.0, 5.0, 1 + 2 + 3 + 4 + 10, 1.0)
    assert TRUE.seconds(step) == pytest.approx(2e-3 + 5 * 3e-4 + 20 * 1e-8 + 5e-5)


def test_drafts_are_drawn_from_and_attend_to_each_other() -> None:
    prompt = RowStep(0, 4, 3, (), True)  # positions 4, 5 and 6 attend to 5, 6 and 7 tokens
    chunk = RowStep(1, 0, 2, (), False)
    drafted = RowStep(2, 9, 3, (), True, drafts=(5, 6))
    assert counted([prompt, chunk, drafted]) == (8, 4, 18 + 3 + 33)
    assert counted([]) == (0, 0, 0)


def test_a_fit_finds_what_made_the_times() -> None:
    draw = random.Random(0)
    plans = [random_plan(draw) for _ in range(200)]
    exact = fit([features(p) for p in plans], [TRUE.seconds(p) for p in plans])
    assert dataclasses.astuple(exact)[:4] == pytest.approx(dataclasses.astuple(TRUE)[:4], rel=1e-6)
    assert exact.error < 1e-9
    noisy = fit([features(p) for p in plans], [TRUE.seconds(p) * draw.uniform(0.8, 1.2) for p in plans])
    assert noisy.token_s == pytest.approx(TRUE.token_s, rel=0.2)
    assert 0.05 < noisy.error < 0.15


def test_nothing_costs_less_than_nothing() -> None:
    """A time that falls with attention is noise, not a rebate."""
    draw = random.Random(1)
    plans = [random_plan(draw) for _ in range(50)]
    rebate = [3e-3 + 1e-4 * p.num_tokens - 1e-9 * features(p)[2] for p in plans]
    fitted = fit([features(p) for p in plans], [max(t, 1e-4) for t in rebate])
    assert min(dataclasses.astuple(fitted)) >= 0
    assert fitted.pair_s == 0


def test_four_numbers_need_four_steps() -> None:
    with pytest.raises(ValueError, match="four"):
        fit([features(plan((0, 1, True)))] * 3, [1.0] * 3)


def test_read(tmp_path: Path) -> None:
    text = json.dumps(dataclasses.asdict(TRUE))
    (tmp_path / "cost.json").write_text(json.dumps({"cost_model": dataclasses.asdict(TRUE), "model": "x"}))
    assert CostModel.read(text) == CostModel.read(str(tmp_path / "cost.json")) == TRUE
    assert CostModel.read('{"step_s": 0.001, "token_s": 0}') == CostModel(0.001, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "{}",
        '{"step_s": 1}',
        '{"step_s": -1, "token_s": 1}',
        '{"step_s": 0, "token_s": 0}',
        '{"step_s": 1, "token_s": NaN}',
        '{"step_s": "1", "token_s": 1}',
        '{"step_s": 1, "token_s": 1, "x": 1}',
        '{"cost_model": 3}',
    ],
)
def test_what_is_no_cost_model(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match="cost model"):
        CostModel.read(str(path))


def test_calibration_leaves_the_engine_as_it_was(driver: Driver) -> None:
    execute = driver.loaded.runner.execute
    cost = calibrate(driver, new_tokens=4, repeat=1)
    assert driver.loaded.runner.execute == execute
    assert cost.step_s + cost.token_s > 0
    assert driver.run([[1, 2, 3]], 2).token_ids
