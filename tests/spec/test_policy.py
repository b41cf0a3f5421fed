"""spec/policy.py against an engine that is simulated: a table of costs, and streams of what is accepted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pytest

from octavo.params.drafts import Draft
from octavo.spec.costs import CostTable, Load
from octavo.spec.policy import RESTS, Auto, Fixed, Policy

MOST = 8
CONTEXT = 300
WRONG, RIGHT = 0, 1

# Seconds of a step by its tokens: of a machine that is bound by memory, by arithmetic, with a head that is
# whole from five rows on, and with tiles of eight.
MACHINES = {
    "memory": {1: 1.0, 256: 2.0},
    "arithmetic": {1: 1.0, 2: 1.9, 256: 230.0},
    "head": {1: 1.0, 4: 1.15, 5: 1.9, 8: 2.05, 256: 14.0},
    "tiles": {1: 1.0, 8: 1.05, 9: 1.9, 16: 2.0, 17: 2.8, 32: 4.0, 256: 32.0},
}


DRAFTS = (Draft.chain([RIGHT] * MOST), Draft.chain([RIGHT] * MOST, 4))
STEPS = {1: 2000, 8: 500, 32: 200}


@dataclass
class Stream:
    """What a row's drafts are worth: the chance that a token is right after the one before it was.

    It changes between two values, as an answer that now copies and now does not.
    """

    draw: random.Random
    chances: tuple[float, float]
    period: int
    steps: int = 0

    def draft(self) -> tuple[Draft, int]:
        """A draft, and how many of its tokens are right; where it copies, more speaks for it."""
        copies = self.steps // self.period % 2
        self.steps += 1
        chance = self.chances[copies]
        right = next((i for i in range(MOST) if self.draw.random() >= chance), MOST)
        return DRAFTS[copies], right


def simulated(
    policy: Policy, machine: str, rows: int, chances: tuple[float, float], noise: float = 0.0, seed: int = 0,
    asking: float = 0.0,
) -> float:  # fmt: skip
    """Tokens a second of so many rows on a machine, where asking takes this share of a plain step."""
    truth, draw = CostTable(MACHINES[machine], pair_s=1e-6), random.Random(seed)
    streams = [Stream(random.Random(f"{seed} {row}"), chances, 40) for row in range(rows)]
    for row in range(rows):
        policy.start(row, MOST)
    tokens, seconds, rests = 0, 0.0, 0
    load = Load(rows, rows, rows * CONTEXT)
    asking_s = asking * truth.measured_at_start(load)
    for _ in range(STEPS[rows]):
        offered = {row: stream.draft() for row, stream in enumerate(streams)}
        chosen: dict[int, Draft] = {}
        other = 0.0
        if rests > 0:
            rests -= 1
        else:
            drafts = {row: offered[row][0] for row in policy.wanted(range(rows))}
            chosen, other = policy.choose(drafts, dict.fromkeys(range(rows), CONTEXT), load), asking_s
            rests = 0 if chosen else policy.rest(load, asking_s)
        verified = sum(len(draft.tokens) for draft in chosen.values())
        step = Load(rows + verified, rows + verified, load.pairs + verified * CONTEXT)
        took = truth.measured_at_start(step)
        policy.took(step, (took + (other if chosen else 0.0)) * draw.lognormvariate(0, noise))
        for row, (_, right) in offered.items():
            accepted = min(right, len(chosen[row].tokens)) if row in chosen else 0
            # What follows is drafted anew each step, so the rest of this draft is seen to be wrong here.
            policy.observe(row, [RIGHT] * accepted + [RIGHT if accepted < right else WRONG])
            tokens += accepted + 1
        seconds += took + other
    return tokens / seconds


@lru_cache(maxsize=64)
def with_fixed_numbers(machine: str, rows: int, chances: tuple[float, float]) -> list[float]:
    """Tokens a second with 0, 1, ... MOST drafted tokens for each row in each step."""
    return [simulated(Some(count), machine, rows, chances) for count in range(MOST + 1)]


class Some(Fixed):
    """A fixed number for all rows."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def start(self, row: int, most: int) -> None:
        super().start(row, min(most, self._count))


GRID = list(itertools.product(MACHINES, (1, 8, 32), ((0.0, 0.1), (0.3, 0.3), (0.2, 0.9), (0.9, 0.9))))


@pytest.mark.parametrize(("machine", "rows", "chances"), GRID)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_it_gains_what_the_best_fixed_number_gains_and_never_loses(
    machine: str, rows: int, chances: tuple[float, float], noise: float
) -> None:
    fixed = with_fixed_numbers(machine, rows, chances)
    auto = simulated(Auto(CostTable(MACHINES[machine], pair_s=1e-6)), machine, rows, chances, noise)
    assert auto >= 0.98 * fixed[0]
    assert auto >= 0.95 * max(fixed)


@pytest.mark.parametrize(("machine", "rows", "chances"), GRID)
def test_it_never_loses_by_asking(machine: str, rows: int, chances: tuple[float, float]) -> None:
    """A tenth of a step goes into it, which an engine without drafts does not do."""
    fixed, auto = with_fixed_numbers(machine, rows, chances), Auto(CostTable(MACHINES[machine], pair_s=1e-6))
    gained = simulated(auto, machine, rows, chances, 0.05, asking=0.1)
    assert gained >= 0.98 * fixed[0]
    assert gained >= 0.75 * max(fixed)


@pytest.mark.parametrize("rows", [1, 8])
def test_it_gains_more_than_any_fixed_number_where_drafts_say_how_good_they_are(rows: int) -> None:
    chances = (0.05, 0.95)
    fixed = with_fixed_numbers("head", rows, chances)
    auto = simulated(Auto(CostTable(MACHINES["head"], pair_s=1e-6)), "head", rows, chances)
    assert auto > 1.03 * max(fixed)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_table_that_is_wrong_is_mended(rows: int) -> None:
    """The table says that drafts cost nothing; steps say that each costs as much as a row."""
    plain = CostTable(MACHINES["arithmetic"]).seconds(Load(rows, rows))
    auto = Auto(CostTable({rows: plain, 512: plain}))
    for _ in range(3):
        simulated(auto, "arithmetic", rows, (0.6, 0.6))
    learned = simulated(auto, "arithmetic", rows, (0.6, 0.6))
    assert learned >= 0.97 * simulated(Some(0), "arithmetic", rows, (0.6, 0.6))


@pytest.mark.parametrize("rows", [1, 8])
def test_a_table_of_a_bad_moment_is_mended(rows: int) -> None:
    """The table says that a first drafted token costs a whole step; steps say that it costs little."""
    plain = CostTable(MACHINES["memory"]).seconds(Load(rows, rows))
    auto = Auto(CostTable({rows: plain, rows + 1: 2 * plain, 256: 12 * plain}))
    for _ in range(4):
        simulated(auto, "memory", rows, (0.8, 0.8))
    assert simulated(auto, "memory", rows, (0.8, 0.8)) >= 1.5 * simulated(Some(0), "memory", rows, (0.8, 0.8))


@pytest.mark.parametrize("chance", [0.0, 0.3])
def test_finding_out_what_verifying_costs_takes_little_time(chance: float) -> None:
    auto = simulated(Auto(CostTable(MACHINES["arithmetic"])), "arithmetic", 1, (chance, chance))
    assert auto >= 0.99 * simulated(Some(0), "arithmetic", 1, (chance, chance))


def settled(chance: float, support: int = 2) -> Auto:
    """A policy that has seen many drafts of this worth."""
    auto, draw = Auto(CostTable({1: 1.0, 2: 1.2, 3: 1.4, 256: 52.0})), random.Random(3)
    auto.start(0, MOST)
    for _ in range(300):
        auto.acceptance.offered(0, Draft.chain([RIGHT], support))
        auto.observe(0, [RIGHT if draw.random() < chance else WRONG])
    return auto


@pytest.mark.parametrize(
    ("chance", "verified"), [(0.0, 0), (0.1, 0), (0.2, 0), (0.24, 0), (0.6, 1), (0.95, 1)]
)
def test_nothing_is_verified_where_the_gain_may_be_chance(chance: float, verified: int) -> None:
    """A second token costs a fifth of a step, so from a chance of 0.2 on there is a gain."""
    auto = settled(chance)
    chosen = auto.choose({0: Draft.chain([RIGHT], 2)}, {0: 10}, Load(1, 1, 10))
    assert sum(len(draft.tokens) for draft in chosen.values()) == verified


def test_noise_in_the_times_asks_for_more_gain() -> None:
    quiet, noisy = settled(0.5), settled(0.5)
    draw = random.Random(0)
    draft, load = Draft.chain([RIGHT], 2), Load(2, 2, 21)
    for _ in range(8):
        quiet.took(load, 1.2)
        noisy.took(load, 1.2 * draw.choice([0.5, 1.9]))
    noisy.costs._sizes[2, 2].mean = noisy.costs._drift = 0.0
    assert quiet.choose({0: draft}, {0: 10}, Load(1, 1, 10))
    assert noisy.costs.error(load) > 3 * quiet.costs.error(load)
    assert not noisy.choose({0: draft}, {0: 10}, Load(1, 1, 10))


def test_a_step_across_which_it_pays_is_crossed() -> None:
    """The fifth row costs a whole head, those after it nothing more: four rows, or many."""
    auto = Auto(CostTable({1: 1.0, 4: 1.0, 5: 1.4, 16: 1.4, 17: 9.0, 256: 90.0}))
    auto.start(0, 15)
    for _ in range(100):
        auto.acceptance.offered(0, Draft.chain([RIGHT] * 15))
        auto.observe(0, [RIGHT] * 15)
    chosen = auto.choose({0: Draft.chain([RIGHT] * 15)}, {0: 10}, Load(1, 1, 10))
    assert len(chosen[0].tokens) == 15
    chosen = auto.choose({0: Draft.chain([RIGHT] * 5)}, {0: 10}, Load(1, 1, 10))
    assert len(chosen[0].tokens) == 5  # 6 tokens in 1.4 are more than 4 in 1
    chosen = auto.choose({0: Draft.chain([RIGHT] * 4)}, {0: 10}, Load(1, 1, 10))
    assert len(chosen[0].tokens) == 3


def test_rows_with_better_drafts_come_first() -> None:
    auto = Auto(CostTable({1: 1.0, 2: 1.0, 4: 1.0, 5: 4.0, 256: 200.0}))
    for row, token in ((0, RIGHT), (1, WRONG)):
        auto.start(row, MOST)
        for _ in range(40):
            auto.acceptance.offered(row, Draft.chain([RIGHT] * 4))
            auto.observe(row, [token] * 4)
    drafts = {0: Draft.chain([RIGHT] * 4), 1: Draft.chain([RIGHT] * 4)}
    chosen = auto.choose(drafts, {0: 10, 1: 10}, Load(2, 2, 20))
    assert {row: len(draft.tokens) for row, draft in chosen.items()} == {0: 2}


def test_a_row_that_asks_for_none_gets_none() -> None:
    for policy in (Auto(CostTable({1: 1.0})), Fixed()):
        policy.start(0, 0)
        policy.start(1, 3)
        assert policy.wanted([0, 1]) == {1: 3}
        policy.remove(0)
        policy.remove(1)


def asked(auto: Auto, steps: int, token: int) -> Iterator[bool]:
    for _ in range(steps):
        wanted = auto.wanted([0])
        auto.choose({row: Draft.chain([RIGHT] * 4) for row in wanted}, {0: 10}, Load(1, 1, 10))
        auto.observe(0, [token])
        yield bool(wanted)


def test_a_row_whose_drafts_are_worth_nothing_is_asked_seldom_and_again_when_they_are() -> None:
    auto = Auto(CostTable({1: 1.0, 256: 256.0}))
    auto.start(0, MOST)
    assert sum(asked(auto, 400, WRONG)) < 120
    assert sum(asked(auto, 40, WRONG)) <= 6
    list(asked(auto, 40, RIGHT))
    assert sum(asked(auto, 20, RIGHT)) >= 15


# --- rows that wait for each other --------------------------------------------------------------------------

SERVER = {1: 3.8, 256: 152.0}
"""Milliseconds on two cores of a server: each token more is a seventh of a step of one."""
LENGTH = 128


def seconds_of_a_group(policy: Policy, chances: list[float]) -> float:
    """Until the last of these rows has its tokens; a row's drafts are as often right as its chance says."""
    truth, draw = CostTable(SERVER), random.Random(1)
    left = dict.fromkeys(range(len(chances)), LENGTH)
    streams = [Stream(random.Random(f"{row}"), (chance, chance), 40) for row, chance in enumerate(chances)]
    for row in left:
        policy.start(row, MOST)
    seconds = 0.0
    while left:
        load = Load(len(left), len(left), len(left) * CONTEXT)
        offered = {row: streams[row].draft() for row in left}
        drafts = {row: offered[row][0] for row in policy.wanted([*left])}
        chosen = policy.choose(drafts, dict.fromkeys(left, CONTEXT), load)
        verified = sum(len(draft.tokens) for draft in chosen.values())
        took = truth.measured_at_start(step := Load(len(left) + verified, len(left) + verified, load.pairs))
        policy.took(step, took * draw.lognormvariate(0, 0.02))
        seconds += took
        for row in [*left]:
            right = offered[row][1]
            accepted = min(right, len(chosen[row].tokens)) if row in chosen else 0
            policy.observe(row, [RIGHT] * accepted + [RIGHT if accepted < right else WRONG])
            left[row] -= accepted + 1
            if left[row] <= 0:
                policy.remove(row)
                del left[row]
    return seconds


def of_groups(auto: Auto, chances: list[float], groups: int = 12) -> float:
    """The gain over plain decoding of several groups, one after the other."""
    plain = seconds_of_a_group(Some(0), chances)
    return groups * plain / sum(seconds_of_a_group(auto, chances) for _ in range(groups))


@pytest.mark.parametrize("rows", [2, 4, 8, 16])
def test_nobody_waits_for_one_row_that_repeats_itself(rows: int) -> None:
    """It is far ahead soon, and the others need as many steps as before."""
    auto = Auto(CostTable(SERVER))
    assert of_groups(auto, [0.95] + [0.05] * (rows - 1)) >= 0.98


@pytest.mark.parametrize(("rows", "gain"), [(1, 2.1), (2, 1.75), (4, 1.4)])
def test_rows_that_all_get_on_gain(rows: int, gain: float) -> None:
    assert of_groups(Auto(CostTable(SERVER)), [0.9] * rows) >= gain


@pytest.mark.parametrize("rows", [1, 2, 8, 32])
@pytest.mark.parametrize(("asking", "one_in"), [(0.05, 10), (0.1, 20), (5.0, RESTS)])
def test_where_nothing_pays_nobody_is_asked_in_most_steps(rows: int, asking: float, one_in: int) -> None:
    """Asking costs the host, row by row. As soon as something pays, all are asked again."""
    auto = Auto(CostTable({1: 1.0, 256: 256.0}))
    for row in range(rows):
        auto.start(row, MOST)
    every, load = range(rows), Load(rows, rows)
    rests = 0

    def asked(steps: int) -> int:
        nonlocal rests
        count = 0
        for _ in range(steps):
            if rests > 0:
                rests -= 1
                continue
            wanted = auto.wanted(every)
            count += bool(wanted)
            drafts = {row: Draft.chain([RIGHT] * 4) for row in wanted}
            if not auto.choose(drafts, dict.fromkeys(every, 10), load):
                rests = auto.rest(load, asking * rows)  # of a step that takes one second a row
            for row in every:
                auto.observe(row, [RIGHT])
        return count

    asked(1000)
    assert asked(320) <= 320 / one_in + 1
    auto.costs = CostTable({1: 1.0, 256: 1.0})
    asked(RESTS + 1)
    assert asked(64) == 64
