"""Policy: how many tokens of each row's draft a step verifies, none included.

    tokens a step is expected to give     rows + the chances of the drafted tokens that it verifies
    -------------------------------------------------------------------------------------------------  = rate
    seconds it takes                      CostTable: tokens, rows sampled, pairs attended

Where several rows run, each waits for what is computed for the others. A token of a row that drafts have
brought no further than the others is worth a row's share of a step: when all get on, there are fewer steps.
One of a row that is far ahead is worth little more than what a row adds to a step: the others need as many
steps as before, and these are longer for what it drafts.

The chances of all rows' drafted tokens are sorted; for every number of them the likeliest are taken, and the
number with the best rate wins. All numbers are looked at because seconds have steps: one row more may cost
nothing, and the next one the whole head. Where the best rate is not above that of plain decoding by more than
may be chance, nothing is verified. But a table that was measured in a bad moment must not have the last
word: a small share of the time is spent on verifying all the same, which measures what that costs now.

Asking for drafts takes time of the host, row by row, whether or not anything is verified then. A part of what
drafts gain pays for that, and a small share of all time. Where both are used up the policy rests: for some
steps nobody is asked, and nobody is told anything, so that these steps take as long as those of an engine
without drafts.

Times decide, so two runs may choose differently. What is generated does not depend on it: a draft is kept
only as far as plain decoding would have drawn it.

csrc/draft_policy.cpp is Auto in C++, with what it learns (csrc/acceptance.cpp, csrc/step_costs.cpp), and
chooses the same. A step's weights have emptied the caches, so what the host touches between two steps comes
from memory: telling Auto of one row's tokens and letting it choose took 100 microseconds in Python, and takes
20 in C++.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.kernels.select import native_class
from octavo.params.drafts import Draft
from octavo.spec.acceptance import Acceptance
from octavo.spec.costs import CostTable, Load

GAIN = 0.02
"""A gain below this share is not worth the risk of being wrong."""
PROBED = 0.005
"""Share of the time that may be lost by verifying what seems not to pay, to see whether that is so."""
FAILED = 8
"""Drafts in a row of which none was worth verifying, after which a row is asked less often."""
SELDOM = 8
"""Steps between two drafts of such a row at most."""
ASKED = 0.005
"""Share of the time that may go into asking for drafts where they gain nothing."""
PAID = 0.5
"""Share of what drafts are expected to gain that may go into asking for more."""
CREDIT = 8
"""Steps whose asking may be paid for in advance: by what drafts have gained, and when an engine begins."""
FIRST = 4
"""Steps in which a row that enters may be asked for, whatever drafts have gained before."""
RESTS = 32
"""Steps of a rest at most."""
AHEAD = 18.0
"""So many tokens ahead of the average row, a row's next ones are worth e times less, beyond what it adds."""
FORGOTTEN = 64
"""Steps after which a token that a row is ahead counts e times less: what rows gain in turns evens out."""


Chance = tuple[float, float, int]
"""Of a drafted token: (chance that it is right, less its standard error, row)."""


class Policy(Protocol):
    """Chooses which drafts a step verifies. One thread calls it, in the order of the steps."""

    def start(self, row: int, most: int) -> None:
        """A request enters the row; a draft of it has at most `most` tokens, 0 is never drafted for."""
        ...

    def remove(self, row: int) -> None: ...

    def wanted(self, rows: Iterable[int]) -> dict[int, int]:
        """Rows whose proposer is to be asked now -> tokens that a draft may have."""
        ...

    def choose(
        self, drafts: Mapping[int, Draft], positions: Mapping[int, int], load: Load
    ) -> dict[int, Draft]:
        """What of these drafts the next step verifies; rows of which nothing is verified are not in it.

        Args:
            positions: tokens known of each row, which each of its drafted ones attends to.
            load: of that step if it verifies nothing, as if no prompt were computed in it: what a drafted
                token costs must be weighed against the rate of decoding, not of a step that is slow anyway.
        """
        ...

    def rest(self, load: Load, asking_s: float) -> int:
        """Nothing is verified in the next step. For so many steps nobody is asked, and nobody need be told.

        Args:
            load: of one of these steps.
            asking_s: seconds that it took to ask, and to choose nothing.
        """
        ...

    def observe(self, row: int, tokens: Sequence[int], steps: int = 1) -> None:
        """The row has got these tokens, in so many steps."""
        ...

    def took(self, load: Load, seconds: float) -> None:
        """A step with this load took so many seconds; where it has verified nothing, without asking_s."""
        ...


def new_auto(costs: CostTable) -> Policy:
    """An Auto with these costs: the extension's, where that was built."""
    if (native := native_class("NativePolicy")) is None:
        return Auto(costs)
    made: Policy = native(*costs.points, costs.pair_s)
    return made


class Fixed:
    """Verifies as many tokens as were asked for, always: for comparison, and for tests."""

    def __init__(self) -> None:
        self._most: dict[int, int] = {}

    def start(self, row: int, most: int) -> None:
        self._most[row] = most

    def remove(self, row: int) -> None:
        self._most.pop(row, None)

    def wanted(self, rows: Iterable[int]) -> dict[int, int]:
        return {row: self._most[row] for row in rows if self._most[row] > 0}

    def choose(
        self, drafts: Mapping[int, Draft], positions: Mapping[int, int], load: Load
    ) -> dict[int, Draft]:
        return {row: draft.first(self._most[row]) for row, draft in drafts.items()}

    def rest(self, load: Load, asking_s: float) -> int:
        return 0

    def observe(self, row: int, tokens: Sequence[int], steps: int = 1) -> None:
        pass

    def took(self, load: Load, seconds: float) -> None:
        pass


@dataclass(slots=True)
class _Asked:
    """failed: drafts since one was worth verifying. skip: steps until the next one is asked for.

    Attributes:
        ahead: tokens for which drafts have saved it a step; it began with the average of the others.
    """

    most: int
    failed: int = 0
    skip: int = 0
    ahead: float = 0.0


class Spending(Protocol):
    """Seconds of drafting that are yet to be spent, as drafts grow by one token after the other."""

    def add(self, length: int) -> float:
        """One more row drafts its token number `length`; the seconds of all that is drafted."""
        ...


class Auto:
    """Verifies as many tokens as are expected to give the most tokens a second.

    Args:
        costs: measured at start; steps keep it up to date.
    """

    GATHERED = SELDOM
    """Steps whose time may be lost at once, at most."""

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self.acceptance = Acceptance()
        self._rows: dict[int, _Asked] = {}
        self._to_lose = 0.0  # seconds
        self._to_ask = math.inf  # seconds; rest() bounds them
        self._asking_s = 0.0  # what it takes on the average

    def start(self, row: int, most: int) -> None:
        self._rows[row] = _Asked(most, ahead=self._usual())
        self._to_ask += FIRST * self._asking_s / len(self._rows)
        self.acceptance.start(row)

    def remove(self, row: int) -> None:
        self._rows.pop(row, None)
        self.acceptance.remove(row)

    def _usual(self) -> float:
        """How far ahead rows are on the average."""
        return sum(state.ahead for state in self._rows.values()) / max(len(self._rows), 1)

    def wanted(self, rows: Iterable[int]) -> dict[int, int]:
        asked: dict[int, int] = {}
        for row in rows:
            state = self._rows[row]
            if state.most <= 0:
                continue
            if state.skip > 0:
                state.skip -= 1
            else:
                asked[row] = state.most
        return asked

    def rest(self, load: Load, asking_s: float) -> int:
        self._asking_s += (asking_s - self._asking_s) / (FAILED if self._asking_s else 1)
        self._to_ask = min(self._to_ask, CREDIT * self._asking_s) - asking_s
        earned = ASKED * self.costs.seconds(load)  # in a step
        steps = min(math.ceil(max(-self._to_ask, 0.0) / earned), RESTS)
        skips = [state.skip for state in self._rows.values() if state.most > 0]
        steps = max(steps, min(skips, default=0))
        for state in self._rows.values():
            state.skip = max(state.skip - steps, 0)
        # What a long rest does not pay for is forgiven: it was a bad moment.
        self._to_ask = max(self._to_ask + earned * (steps + 1), 0.0)
        return steps

    def choose(
        self, drafts: Mapping[int, Draft], positions: Mapping[int, int], load: Load
    ) -> dict[int, Draft]:
        chances: list[Chance] = []
        for row, draft in drafts.items():
            self.acceptance.offered(row, draft)
            means, errors = self.acceptance.chances(row, draft.support, len(draft.tokens))
            chances += [(mean, -error, row) for mean, error in zip(means, errors, strict=True)]
        chances = self._weighed(chances, load)
        best, lost, at, gained = self._best(chances, positions, load)
        self._to_ask += PAID * gained
        verified = {row for _, _, row in chances[:best]}
        for row in drafts:
            self._note(self._rows[row], row in verified)
        if best == 0 and 0 < lost <= self._to_lose:  # not worth it, but what does it cost by now?
            self._to_lose -= lost
            best = at
        counts: dict[int, int] = {}
        for _, _, row in chances[:best]:
            counts[row] = counts.get(row, 0) + 1
        return {row: drafts[row].first(count) for row, count in counts.items()}

    def _best(
        self, chances: Sequence[Chance], positions: Mapping[int, int], load: Load
    ) -> tuple[int, float, int, float]:
        """(how many tokens make the best rate, seconds that the number which loses least loses, that number,
        seconds that the best one gains).

        Chances are the best first. A row's own do not rise along its draft, so the best ones of all are the
        first ones of each. What is expected of them is taken less its standard error. The errors of one row's
        tokens are of one kind, and add up; those of several rows are independent.
        """
        lengths: dict[int, int] = {}
        pairs = [load.pairs]  # of all up to each
        at: list[int] = []  # which of its row's each is
        for _, _, row in chances:
            lengths[row] = length = lengths.get(row, 0) + 1
            pairs.append(pairs[-1] + (positions[row] + length))
            at.append(length)
        (plain_s, plain_error), *known = self.costs.growing(load, pairs)
        rate = load.sampled / plain_s
        best, best_rate, tokens, variance = 0, rate, float(load.sampled), 0.0
        least_lost, least_at, gained = math.inf, 0, 0.0
        errors: dict[int, float] = {}
        spending = self._spending()
        each = zip(chances, known, at, strict=True)
        for count, ((chance, error, row), (seconds, doubt), length) in enumerate(each, start=1):
            before = errors.get(row, 0.0)
            errors[row] = after = before - error
            variance += after * after - before * before
            tokens += chance
            if spending is not None:
                seconds += spending.add(length)
            sure = tokens - math.sqrt(variance)
            if sure / seconds > max(best_rate, rate * (1 + GAIN + doubt + plain_error)):
                best, best_rate, gained = count, sure / seconds, sure / rate - seconds
            if (lost := seconds - sure / rate) < least_lost:
                least_lost, least_at = lost, count
        return best, least_lost, least_at, gained

    def _weighed(self, chances: Iterable[Chance], load: Load) -> list[Chance]:
        """Chances and errors by what their rows' tokens are worth, the best first."""
        if load.sampled < 2:  # who runs alone waits for nobody
            return sorted(chances, reverse=True)
        every = [*chances]
        worth = self._worth({row for _, _, row in every}, load)
        return sorted(
            ((chance * worth[row], error * worth[row], row) for chance, error, row in every), reverse=True
        )

    def _worth(self, rows: Iterable[int], load: Load) -> dict[int, float]:
        """Of each row, what one more token of it is worth beside an average one of the step: at most 1."""
        count = load.sampled
        if count < 2:
            return dict.fromkeys(rows, 1.0)
        whole = self.costs.seconds(load)
        one_less = self.costs.seconds(Load(load.tokens - 1, count - 1, load.pairs * (count - 1) / count))
        least = min(max(count * (whole - one_less) / whole, 0.0), 1.0)
        usual = self._usual()
        return {
            row: least + (1 - least) * math.exp(-max(self._rows[row].ahead - usual, 0.0) / AHEAD)
            for row in rows
        }

    def _spending(self) -> Spending | None:
        """The seconds that drafting takes: here none are left, since the drafts are there already."""
        return None

    def _note(self, state: _Asked, verified: bool) -> None:
        """A row whose drafts are worth nothing is asked less and less often."""
        if verified:
            state.failed = 0
            return
        state.failed += 1
        state.skip = min(state.failed // FAILED, SELDOM - 1)

    def observe(self, row: int, tokens: Sequence[int], steps: int = 1) -> None:
        state = self._rows[row]
        state.ahead += len(tokens) - steps - state.ahead * min(steps / FORGOTTEN, 1.0)
        hits = self.acceptance.observe(row, tokens)
        if hits is not None and sum(hits) > 1:  # better than by chance: a copy may have begun
            state.failed = state.skip = 0

    def took(self, load: Load, seconds: float) -> None:
        self.costs.observe(load, seconds)
        self._to_lose = min(self._to_lose + PROBED * seconds, self.GATHERED * seconds)
