"""Ahead: a policy for drafts that cost as steps do, because a model draws them.

Auto looks at drafts that are there and chooses how much of them is verified. Here a draft is worth making
only if it will be verified, so the number is chosen before: from how often the drafts of each row were right,
and from what the forwards that draft take, beside what the verifying step takes.

    seconds of a step that verifies n tokens   CostTable of the target
    + of each forward that drafts              CostTable of the drafter, by rows: the i-th has those rows
                                               whose draft has i tokens at least
    + what the drafter lacks of a row          seconds of a token, which a row pays once: its prompt, and what
                                               it went on with while nothing was drafted

Nothing is learned of a row for which nothing is drafted. So an engine begins with a trial of a few drafts, in
which it hopes for the best that may be, and the small share of the time that Auto spends on what seems not to
pay is what finds out later when drafts pay again: of the rows that lack least, and what they lack is paid for
as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from octavo.params.drafts import Draft
from octavo.spec.acceptance import SMALLEST, Acceptance
from octavo.spec.costs import CostTable, Load
from octavo.spec.policy import SELDOM, Auto, Chance, Spending

HORIZON = 64
"""Tokens that a row is expected to generate yet: what its drafter lacks must pay within so many."""
TRIAL = 16
"""Drafts that an engine may make because they would pay, were they right as often as may be."""
HOPED = 2.0
"""Standard errors by which a trial takes a chance to be higher: not one wrong token ends it, but three."""
NEAR = 8
"""Rows that lack so many tokens more than the one that lacks least are tried with it, by the same forward."""
FOLLOWED = 8
"""Times that a drafter has caught up after which the seconds of a lacking token are those of then."""


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

    What may be lost gathers for longer, since what a drafter lacks may take many steps.

    Args:
        costs: of the target's steps. drafting: of the drafter's forwards of one token of each row.
        lack_s: seconds that each token takes which the drafter lacks; steps keep it up to date.
        at_once: tokens that one forward of the drafter computes at most.
    """

    GATHERED = HORIZON

    def __init__(
        self, costs: CostTable, drafting: CostTable, lack_s: float = 0.0, at_once: int = 1 << 30
    ) -> None:
        super().__init__(costs)
        self.drafting, self.lack_s, self._at_once = drafting, lack_s, at_once
        self.acceptance = Acceptance(steady=True)
        self._known: Mapping[int, int] = {}
        self._lacks: Mapping[int, int] = {}
        self._load = Load(0, 0)
        self._trial = TRIAL

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
        chances = {row: self._chances(row, count) for row, count in most.items()}
        taken = self._paying(chances)
        drafted = {row for _, _, row in taken}
        for row in most:
            self._note(self._rows[row], row in drafted)
        if not taken and self._trial > 0:
            taken = self._paying(chances, hoping=True)
            self._trial -= len({row for _, _, row in taken})
        if not taken and chances:  # not worth it, as far as is known: what is it worth?
            taken = self._probe(chances)
        counts: dict[int, int] = {}
        for _, _, row in taken:
            counts[row] = counts.get(row, 0) + 1
        return counts

    def _paying(self, chances: Mapping[int, Sequence[Chance]], hoping: bool = False) -> Sequence[Chance]:
        """What is worth drafting, the best first.

        Args:
            hoping: each chance may be higher by HOPED times its standard error, rather than lower by it.
        """
        if hoping:
            chances = {
                row: [(min(mean - HOPED * error, 1.0), 0.0, row) for mean, error, row in own]
                for row, own in chances.items()
            }
        begun = (
            own for row, own in chances.items() if self._pays_to_begin(row, sum(each[0] for each in own))
        )
        taken = self._weighed(chain.from_iterable(begun), self._load)
        return taken[: self._best(taken, self._known, self._load)[0]]

    def _chances(self, row: int, count: int) -> list[Chance]:
        """(chance, less its standard error, row) of each token that a draft of the row may have."""
        means, errors = self.acceptance.chances(row, 0, count)
        if not means:  # never right so far: one token may find out whether that is still so
            means, errors = [SMALLEST], [0.0]
        return [(mean, -error, row) for mean, error in zip(means, errors, strict=True)]

    def _probe(self, chances: Mapping[int, Sequence[Chance]]) -> Sequence[Chance]:
        """Tokens of the rows that lack least, as many as lose least, where that much may be lost."""
        least = min(self._lacks.get(row, 1) for row in chances)
        near = (own for row, own in chances.items() if self._lacks.get(row, 1) <= least + NEAR)
        taken = self._weighed(chain.from_iterable(near), self._load)
        _, lost, at, _ = self._best(taken, self._known, self._load)
        taken, lost = taken[:at], max(lost, 0.0)
        rows = {row for _, _, row in taken}
        catching_up = sum(map(self._catching_up, rows))
        if lost + catching_up > self._to_lose:
            return []
        lacking = sum(self._lacks.get(row, 1) for row in rows)
        if lacking > self._at_once:  # nothing is drafted yet
            self._to_lose -= catching_up * self._at_once / lacking
        else:
            # What has gathered for one who lacks much is not for drafts that lose again and again.
            rest = SELDOM * self.costs.seconds(self._load)
            self._to_lose = min(self._to_lose - lost - catching_up, rest)
        return taken

    def _catching_up(self, row: int) -> float:
        """Seconds that what the drafter lacks of a row takes, beyond the token that it begins with."""
        return self.lack_s * max(self._lacks.get(row, 1) - 1, 0)

    def _pays_to_begin(self, row: int, more: float) -> bool:
        """Whether computing what the drafter lacks pays within the HORIZON: it saves steps of this row.

        Args:
            more: tokens expected of a draft.
        """
        saved = HORIZON * (1 - 1 / (1 + more)) * self.costs.seconds(self._load) / max(self._load.sampled, 1)
        return self._catching_up(row) <= saved

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

    def caught_up(self, tokens: int, rows: int, seconds: float) -> None:
        """A forward that computes so many tokens, and draws of so many rows, has taken so long."""
        if tokens <= rows:
            return
        drawing = self.drafting.seconds(Load(rows, rows)) if rows else 0.0
        found = max(seconds - drawing, 0.0) / (tokens - rows)
        self.lack_s += (found - self.lack_s) / (FOLLOWED if self.lack_s else 1)
