"""spec/ahead.py against an engine that is simulated: drafts cost forwards, and are right by chance."""

from __future__ import annotations

import random

import pytest

from octavo.params.drafts import Draft
from octavo.spec.ahead import Ahead
from octavo.spec.costs import CostTable, Load

MOST, CONTEXT = 8, 300
RIGHT, WRONG = 1, 0
STEPS = {1: 1500, 8: 400, 32: 150}
MACHINES = {
    "memory": {1: 1.0, 256: 2.0},
    "arithmetic": {1: 1.0, 2: 1.9, 256: 230.0},
    "head": {1: 1.0, 4: 1.15, 5: 1.9, 8: 2.05, 256: 14.0},
}


def drafter_of(machine: str, share: float) -> CostTable:
    """A drafter that takes this share of the target's time."""
    return CostTable({count: share * seconds for count, seconds in MACHINES[machine].items()})


class Simulated:
    """A machine, and rows whose drafted tokens are right with one chance.

    Args:
        prompt: tokens that the drafter lacks of each row at first. lack_s: what each lacking token takes.

    Attributes:
        asked: how many tokens were drafted for a row, by step.
    """

    def __init__(self, machine: str, share: float, rows: int, prompt: int = 1, lack_s: float = 0.0) -> None:
        self.truth, self.drafter, self.rows = CostTable(MACHINES[machine]), drafter_of(machine, share), rows
        self.draw, self.asked = random.Random(1), list[int]()
        self.lacks, self.lack_s = [prompt] * rows, lack_s
        self.tokens, self.seconds = 0, 0.0

    def step(self, policy: Ahead, chance: float) -> None:
        rows = range(self.rows)
        known = dict.fromkeys(rows, CONTEXT)
        load = Load(self.rows, self.rows, self.rows * CONTEXT)
        policy.foresee(known, dict(enumerate(self.lacks)), load)
        asked = policy.wanted(rows)
        lacking = sum(self.lacks[row] for row in asked)
        if lacking > len(asked):
            took = self.lack_s * (lacking - len(asked))
            drawing = self.drafter.measured_at_start(Load(len(asked), len(asked)))
            policy.caught_up(lacking, len(asked), took + drawing)
            self.seconds += took
        drafts = {row: Draft.chain([RIGHT] * count) for row, count in asked.items()}
        chosen = policy.choose(drafts, known, load)
        assert chosen == drafts, "what was paid for is verified"
        for forward in range(max(asked.values(), default=0)):
            drafting = sum(count > forward for count in asked.values())
            took = self.drafter.measured_at_start(Load(drafting, drafting))
            policy.drafted(drafting, took)
            self.seconds += took
        verified = sum(asked.values())
        step = Load(self.rows + verified, self.rows + verified, load.pairs + verified * CONTEXT)
        policy.took(step, self.truth.measured_at_start(step))
        self.seconds += self.truth.measured_at_start(step)
        for row in rows:
            count = asked.get(row, 0)
            right = next((i for i in range(count) if self.draw.random() >= chance), count)
            policy.observe(row, [RIGHT] * right + [WRONG])
            self.lacks[row] = 1 if count else self.lacks[row] + 1
            self.tokens += right + 1
            self.asked.append(count)

    def best(self, chance: float) -> tuple[float, int]:
        """(tokens a second with the best number of drafted tokens for each row, that number)."""
        rates = []
        for count in range(MOST + 1):
            tau = sum(chance**place for place in range(count + 1))
            verify = self.truth.measured_at_start(Load(self.rows * (1 + count), 1))
            drafting = count * self.drafter.measured_at_start(Load(self.rows, self.rows))
            rates.append((self.rows * tau / (verify + drafting), count))
        return max(rates)


def simulated(machine: str, share: float, rows: int, chance: float) -> tuple[Simulated, Ahead]:
    engine = Simulated(machine, share, rows)
    policy = Ahead(CostTable(MACHINES[machine]), drafter_of(machine, share))
    for row in range(rows):
        policy.start(row, MOST)
    for _ in range(STEPS[rows]):
        engine.step(policy, chance)
    return engine, policy


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("rows", STEPS)
def test_it_is_near_the_best_number_and_never_loses(machine: str, share: float, rows: int) -> None:
    for chance in (0.0, 0.3, 0.6, 0.9):
        engine, _ = simulated(machine, share, rows, chance)
        rate, plain = engine.tokens / engine.seconds, rows / engine.truth.measured_at_start(Load(rows, 1))
        assert rate > 0.98 * plain, (chance, rate / plain)
        assert rate > 0.85 * engine.best(chance)[0], (chance, rate / engine.best(chance)[0])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_nothing_is_drafted_where_that_loses(share: float) -> None:
    """But for a small share of the steps, which find out whether it still does."""
    engine, _ = simulated("arithmetic", share, 8, 0.3)
    assert engine.best(0.3)[1] == 0
    assert 0 < sum(count > 0 for count in engine.asked) < 0.05 * len(engine.asked)


def test_it_begins_again_where_drafts_are_right_again() -> None:
    engine, policy = simulated("memory", 0.2, 1, 0.0)
    assert sum(engine.asked[-200:]) < 20
    engine.asked.clear()
    for _ in range(1500):
        engine.step(policy, 0.95)
    assert sum(count > 0 for count in engine.asked[-200:]) > 180


def drafting_alone(share: float, told: float, chance: float, steps: int) -> Simulated:
    """One row's steps; the table of the start says that the drafter takes `told` of the target's time."""
    engine = Simulated("memory", share, 1)
    policy = Ahead(CostTable(MACHINES["memory"]), drafter_of("memory", told))
    policy.start(0, MOST)
    for _ in range(steps):
        engine.step(policy, chance)
    return engine


def test_a_slower_drafter_drafts_less() -> None:
    """Costs are followed: the table of the start said a tenth of what it takes."""
    engine = drafting_alone(1.0, 0.1, 0.3, 600)
    assert sum(engine.asked[:20]) > 4
    assert sum(engine.asked[-200:]) < 20


@pytest.mark.parametrize(("lacks", "begins"), [(1, True), (30, True), (4000, False)])
def test_a_long_prompt_must_pay(lacks: int, begins: bool) -> None:
    """What the drafter lacks of a row takes longer than its drafts are expected to save."""
    engine = Simulated("memory", 0.1, 1, lacks, 0.05)
    policy = Ahead(CostTable(MACHINES["memory"]), drafter_of("memory", 0.1), 0.05)
    policy.start(0, MOST)
    engine.step(policy, 0.9)
    assert bool(engine.asked[0]) is begins


@pytest.mark.parametrize("share", [0.2, 0.45])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.95])
def test_what_the_drafter_lacks_is_paid_for(share: float, told: bool, chance: float) -> None:
    """A prompt at first, then all that a row went on with while nothing was drafted: finding out whether
    drafts pay loses no more than its share, whatever was known of that at start."""
    engine = Simulated("memory", share, 1, 300, share * 0.1)
    policy = Ahead(CostTable(MACHINES["memory"]), drafter_of("memory", share), share * 0.1 if told else 0.0)
    policy.start(0, MOST)
    for _ in range(4000):
        engine.step(policy, chance)
    plain = 1 / engine.truth.measured_at_start(Load(1, 1))
    assert engine.tokens / engine.seconds > 0.98 * plain
    assert engine.tokens / engine.seconds > 0.85 * engine.best(chance)[0]
    assert policy.lack_s == pytest.approx(share * 0.1)


@pytest.mark.parametrize("share", [0.2, 0.45])
def test_a_good_drafter_is_found_within_an_answer(share: float) -> None:
    """An engine begins with a trial: of 64 tokens of its first answer most come of drafts."""
    engine = Simulated("memory", share, 1, 100, share * 0.1)
    policy = Ahead(CostTable(MACHINES["memory"]), drafter_of("memory", share), share * 0.1)
    policy.start(0, MOST)
    while engine.tokens < 64:
        engine.step(policy, 0.97)
    assert sum(count > 0 for count in engine.asked) > 0.9 * len(engine.asked)


def test_a_trial_is_one() -> None:
    """Where no draft is ever right it loses a few steps' time once, and then its share."""
    engine = drafting_alone(0.45, 0.45, 0.0, 100)
    assert 1 < sum(count > 0 for count in engine.asked[:50]) < 20
    assert sum(count > 0 for count in engine.asked[50:]) <= 2


def test_a_long_prompt_is_paid_for_piece_by_piece() -> None:
    """The trial of a row that lacks more than one forward computes goes on until all is computed."""
    policy = Ahead(CostTable(MACHINES["memory"]), drafter_of("memory", 0.2), 0.02, at_once=256)
    policy.start(0, MOST)
    for lacks in (1000, 744, 488, 232, 1):
        policy.foresee({0: CONTEXT}, {0: lacks}, Load(1, 1, CONTEXT))
        assert policy.wanted([0]), lacks
        policy.choose({}, {0: CONTEXT}, Load(1, 1, CONTEXT))


def test_rows_that_lack_least_find_out() -> None:
    policy = Ahead(CostTable(MACHINES["memory"]), drafter_of("memory", 1.0), 0.1)
    for row in range(3):
        policy.start(row, MOST)
    for _ in range(400):
        policy.took(Load(3, 3, 3 * CONTEXT), 1.0)
    policy.foresee(dict.fromkeys(range(3), CONTEXT), {0: 200, 1: 4, 2: 40}, Load(3, 3, 3 * CONTEXT))
    assert [*policy.wanted(range(3))] == [1]
