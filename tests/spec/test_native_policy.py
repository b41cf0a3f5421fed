"""csrc/draft_policy.cpp against spec/policy.py: told the same, both choose the same, in every step."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from octavo.kernels.select import native_available
from octavo.params.drafts import Draft
from octavo.spec.costs import CostTable, Load
from octavo.spec.policy import Auto, Policy, new_auto

needs_extension = pytest.mark.skipif(not native_available(), reason="the extension was not built")

MACHINES = (
    ({1: 1.0, 256: 2.0}, {1: 0.1, 8: 0.2, 256: 9.0}),
    ({1: 1.0, 4: 1.15, 5: 1.9, 8: 2.05, 256: 14.0}, {1: 0.0}),
    ({1: 1.0, 2: 7.0, 8: 2.05, 16: 2.0, 256: 230.0}, {1: 0.3, 4: 0.1, 300: 2.0}),
)
STEPS = 250
OTHER = 7
"""No token of any draft."""


class Told:
    """Both policies, told of the same rows: what one answers the other must answer."""

    def __init__(self, draw: random.Random, rows: int, right: float) -> None:
        """right: how often a row goes on along its draft."""
        self.right = right
        tokens, sampled = draw.choice(MACHINES)
        self.table = CostTable(tokens, sampled, 1e-6)
        self.python: Policy = Auto(CostTable(tokens, sampled, 1e-6))
        self.native = new_auto(CostTable(tokens, sampled, 1e-6))
        assert not isinstance(self.native, Auto)
        self.draw, self.rows = draw, list(range(rows))
        for row in self.rows:
            self.enter(row, 8)

    def both(self) -> tuple[Policy, Policy]:
        return self.python, self.native

    def enter(self, row: int, most: int) -> None:
        for policy in self.both():
            policy.remove(row)
            policy.start(row, most)

    def drafts(self, wanted: dict[int, int]) -> dict[int, Draft]:
        """Of most rows that are asked: chains, and trees."""
        asked = {row: most for row, most in wanted.items() if self.draw.random() < 0.8}
        return {row: self.draft(self.draw.randint(1, most)) for row, most in asked.items()}

    def draft(self, count: int) -> Draft:
        tokens, support = [self.draw.randrange(2) for _ in range(count)], self.draw.randrange(10)
        if self.draw.random() < 0.7:
            return Draft.chain(tokens, support)
        nodes: list[tuple[int, int]] = []
        for index, token in enumerate(tokens):
            node = self.draw.randrange(-1, min(index, len(nodes))), token
            if node not in nodes:
                nodes.append(node)
        return Draft(tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes), support)

    def step(self) -> int:
        """Returns how many tokens were verified."""
        draw, rows = self.draw, self.rows
        known = {row: draw.randrange(50, 3000) for row in rows}
        load = Load(len(rows), len(rows), sum(known.values()))
        wanted = self.python.wanted(rows)
        assert self.native.wanted(rows) == wanted
        drafts = self.drafts(wanted)
        chosen = self.python.choose(drafts, known, load)
        assert self.native.choose(drafts, known, load) == chosen
        if not chosen:
            asking_s = draw.choice([0.0, 0.001, 0.1, 30.0])
            assert self.native.rest(load, asking_s) == self.python.rest(load, asking_s)
        for row in rows:
            tokens = self.went_on(chosen.get(row) or drafts.get(row))
            steps = draw.choice([1, 1, 1, len(tokens)])
            for policy in self.both():
                policy.observe(row, tokens, steps)
        verified = sum(len(draft.tokens) for draft in chosen.values())
        step = Load(load.tokens + verified, load.sampled + verified, load.pairs + 100.0 * verified)
        seconds = self.table.measured_at_start(step) * draw.lognormvariate(0.0, 0.2)
        for policy in self.both():
            policy.took(step, seconds)
        return verified

    def went_on(self, draft: Draft | None) -> Sequence[int]:
        """Tokens of a row."""
        if draft is not None and self.draw.random() < self.right:
            return [*self.draw.choice(draft.paths()), self.draw.randrange(2)]
        if self.right == 0.0:
            return [OTHER]
        return [self.draw.randrange(2) for _ in range(self.draw.randint(1, 4))]


@needs_extension
@pytest.mark.parametrize("rows", [1, 2, 5, 32])
@pytest.mark.parametrize("right", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_it_chooses_what_python_chooses(seed: int, rows: int, right: float) -> None:
    draw = random.Random(f"{seed} {rows} {right}")
    told, verified = Told(draw, rows, right), 0
    for _ in range(STEPS):
        if right and draw.random() < 0.03:
            told.enter(draw.choice(told.rows), draw.choice([0, 3, 8]))
        verified += told.step()
    assert bool(verified) or not right


@needs_extension
def test_it_names_what_it_is_not_told_of() -> None:
    policy = new_auto(CostTable({1: 1.0}))
    policy.remove(3)  # whoever leaves need not have been there
    for call in (
        lambda: policy.wanted([3]),
        lambda: policy.observe(3, [1]),
        lambda: policy.choose({3: Draft.chain([1])}, {3: 10}, Load(1, 1, 10)),
    ):
        with pytest.raises(IndexError):
            call()
    policy.start(3, 4)
    with pytest.raises(KeyError):
        policy.choose({3: Draft.chain([1])}, {}, Load(1, 1, 10))


@needs_extension
def test_a_draft_that_is_taken_whole_is_the_same_one() -> None:
    policy = new_auto(CostTable({1: 1.0, 256: 1.0}))
    policy.start(0, 4)
    draft = Draft.chain([1, 1])
    for _ in range(30):
        chosen = policy.choose({0: draft}, {0: 10}, Load(1, 1, 10))
        policy.observe(0, [1, 1, 1])
    assert chosen[0] is draft
