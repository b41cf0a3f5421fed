"""TokenBudget against simulated machines."""

from __future__ import annotations

import pytest

from octavo.engine.budget import MARGIN, MIN_TOKENS, TokenBudget


def run(budget: TokenBudget, num_decoding: int, seconds_of: dict[str, float], steps: int) -> int:
    """Steps that use the whole budget on a machine of fixed + per_token cost; the last budget."""
    for _ in range(steps):
        tokens = budget.tokens(num_decoding)
        budget.observe(tokens, seconds_of["fixed"] + tokens * seconds_of["per_token"])
    return budget.tokens(num_decoding)


def test_without_target_or_decodes_the_whole_budget_is_given() -> None:
    assert TokenBudget(512, None).tokens(5) == 512
    slow = TokenBudget(512, 0.1)
    slow.observe(512, 100.0)
    slow.observe(512, 100.0)
    assert slow.tokens(0) == 512


@pytest.mark.parametrize("fixed", [0.0, 0.03, 0.06])
def test_it_finds_the_number_that_takes_the_target(fixed: float) -> None:
    budget = TokenBudget(2048, 0.1)
    found = run(budget, 4, {"fixed": fixed, "per_token": 0.0005}, 60)
    assert found == pytest.approx((0.1 * MARGIN - fixed) / 0.0005, rel=0.05)


@pytest.mark.parametrize("fixed", [0.0, 0.03, 0.06])
@pytest.mark.parametrize("per_token", [0.0005, 0.002])
def test_no_step_takes_longer_than_the_target_not_even_the_first(fixed: float, per_token: float) -> None:
    """Nor while prompts of 8,000 grow and attention over them makes each token dearer."""
    budget, done = TokenBudget(2048, 0.1), 0
    for _ in range(300):
        tokens = budget.tokens(4)
        done = (done + tokens) % 8000
        seconds = fixed + tokens * per_token * (1 + done / 5000)
        assert seconds < 0.1 or tokens == 4 + MIN_TOKENS
        budget.observe(tokens, seconds)


@pytest.mark.parametrize("per_token", [0.00001, 0.0002])
def test_a_few_steps_are_enough_to_reach_it(per_token: float) -> None:
    machine = {"fixed": 0.005, "per_token": per_token}
    assert run(TokenBudget(2048, 0.1), 4, machine, 8) > 0.9 * run(TokenBudget(2048, 0.1), 4, machine, 99)


def quick() -> TokenBudget:
    """One that has seen large steps take no time."""
    budget = TokenBudget(512, 0.1)
    for _ in range(4):
        budget.observe(512, 0.01)
    assert budget.tokens(4) == 512
    return budget


def test_it_recovers_when_the_machine_is_fast_again() -> None:
    budget = TokenBudget(1024, 0.1)
    assert run(budget, 4, {"fixed": 0.0, "per_token": 0.002}, 30) == pytest.approx(50 * MARGIN, abs=2)
    assert run(budget, 4, {"fixed": 0.0, "per_token": 0.00005}, 60) == 1024


def test_prompts_go_on_however_slow_it_is() -> None:
    budget = TokenBudget(512, 0.1)
    for _ in range(40):
        budget.observe(8, 3.0)
    assert budget.tokens(1) == 1 + MIN_TOKENS
    assert budget.tokens(100) == 100 + MIN_TOKENS  # decodes are not held back
    assert budget.tokens(600) == 512


def test_small_quick_steps_say_nothing_about_large_ones() -> None:
    budget = quick()
    for _ in range(100):
        budget.observe(4, 0.05)  # fixed cost: 4 tokens take 50 ms, but 512 might take 60
    assert budget.tokens(4) == 512
    budget.observe(4, 0.2)  # that one was too slow by itself
    assert budget.tokens(4) < 512


def test_nonsense_is_ignored() -> None:
    budget = quick()
    budget.observe(0, 1.0)
    budget.observe(512, 0.0)
    assert budget.tokens(1) == 512
