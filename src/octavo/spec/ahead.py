"""Ahead: a policy for drafts that cost as steps do, because a model draws them.

Auto looks at drafts that are there and chooses how much of them is verified. Here a draft is worth making
only if it will be verified, so the number is chosen before: from how often the drafts of each row were right,
and from what the forwards that draft take, beside what the verifying step takes.

    seconds of a step that verifies n tokens   CostTable of the target
    + of each forward that drafts              CostTable of the drafter, by rows: the i-th has those rows
                                               whose draft has i tokens at least

Nothing is learned of a row for which nothing is drafted. So the small share of the time that Auto spends on
what seems not to pay is what finds out when drafts pay again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.params.drafts import Draft
from octavo.spec.acceptance import SMALLEST, Acceptance
from octavo.spec.costs import CostTable, Load
from octavo.spec.policy import Auto, Spending

HORIZON = 64
"""Tokens that a row is expected to generate yet: what its drafter lacks must pay within so many."""


class Spent(Spending):
    """Seconds of the forwards that draft, as drafts grow by one token after the other."""

    def __init__(self, costs: CostTable) -> None:
        self._costs, self._rows, self._total = costs, list[int](), 0.0

    def add(self, length: int) -> float:
        """One more row drafts its token number `length`; the seconds of all forwards."""
        if length > len(self._rows):
            self._rows.append(0)
        self._rows[length - 1] += 1
        rows = self._rows[length - 1]
        before = self._costs.seconds(Load(rows - 1, rows - 1)) if rows > 1 else 0.0
        self._total += self._costs.seconds(Load(rows, rows)) - before
        return self._total


class Ahead(Auto):
    """As Auto; foresee() comes before each wanted().

    Args:
        costs: of the target's steps. drafting: of the drafter's forwards of one token of each row.
    """

    def __init__(self, costs: CostTable, drafting: CostTable) -> None:
        super().__init__(costs)
        self.drafting = drafting
        self.acceptance = Acceptance(steady=True)
        self._known: Mapping[int, int] = {}
        self._lacks: Mapping[int, int] = {}
        self._load = Load(0, 0)

    def foresee(self, known: Mapping[int, int], lacks: Mapping[int, int], load: Load) -> None:
        """What the next step has to do.

        Args:
            known: row -> tokens known of it. lacks: row -> tokens that the drafter must compute first.
            load: of the step if it verifies nothing.
        """
        self._known, self._lacks, self._load = known, lacks, load

    def rest(self, load: Load, asking_s: float) -> int:
        """Steps in which no row's turn comes. What drafting takes is weighed beforehand."""
        return super().rest(load, 0.0)

    def wanted(self, rows: Iterable[int]) -> dict[int, int]:
        most = super().wanted(rows)
        chances: list[tuple[float, float, int]] = []
        for row, count in most.items():
            means, errors = self.acceptance.chances(row, 0, count)
            if not means:  # never right so far: one token may find out whether that is still so
                means, errors = [SMALLEST], [0.0]
            if self._pays_to_begin(row, sum(means)):
                chances += [(mean, -error, row) for mean, error in zip(means, errors, strict=True)]
        chances = self._weighed(chances, self._load)
        best, lost, at, _ = self._best(chances, self._known, self._load)
        drafted = {row for _, _, row in chances[:best]}
        for row in most:
            self._note(self._rows[row], row in drafted)
        if best == 0 and lost <= self._to_lose:  # not worth it, as far as is known: what is it worth?
            self._to_lose -= max(lost, 0.0)
            best = at
        counts: dict[int, int] = {}
        for _, _, row in chances[:best]:
            counts[row] = counts.get(row, 0) + 1
        return counts

    def _pays_to_begin(self, row: int, more: float) -> bool:
        """Whether computing what the drafter lacks pays within the HORIZON: it saves steps of this row.

        Args:
            more: tokens expected of a draft.
        """
        lacks = self._lacks.get(row, 1)
        if lacks <= 1:
            return True
        saved = HORIZON * (1 - 1 / (1 + more)) * self.costs.seconds(self._load) / max(self._load.sampled, 1)
        return self.drafting.seconds(Load(lacks, 1)) < saved

    def choose(
        self, drafts: Mapping[int, Draft], positions: Mapping[int, int], load: Load
    ) -> dict[int, Draft]:
        for row, draft in drafts.items():
            self.acceptance.offered(row, draft)
        return dict(drafts)

    def _spending(self) -> Spent:
        return Spent(self.drafting)

    def drafted(self, rows: int, seconds: float) -> None:
        """A forward that drafts a token of each of so many rows has taken so long."""
        self.drafting.observe(Load(rows, rows), seconds)
