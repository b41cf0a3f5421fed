"""CostTable: how long a step takes, from what it computes, as measured.

A step's time is no line. The head of a vocabulary may screen its rows up to some number of them and compute
the whole from there on; matrices are multiplied in tiles of rows. So the table holds what was measured for
numbers of tokens and for numbers of sampled rows, and a slope only for attention, which is one:

    seconds = at(tokens) + at(sampled rows) + pair_s * pairs

Steps that run later keep it up to date. A machine that is slower for a while is slower for all steps alike,
which changes no choice; so what a step says beyond the table is taken apart:

    log(seconds / table) = drift, of all steps, followed fast
                         + what steps of this size differ by, followed slowly, forgotten where none runs
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 96, 128, 192, 256)
"""Numbers of tokens and of sampled rows worth measuring at start: both sides of steps of tiles and heads."""
FAST = 8
"""Steps in which the drift follows."""
SLOW = 64
"""Steps of one size in which its difference follows."""
FORGOTTEN = 16384
"""Steps of other sizes after which half of a difference is forgotten: it may have been a bad moment."""
OUTLIER, FIRST_OUTLIER = 0.3, 0.7
"""Logarithms: what a single step says beyond it is noise. The FAST first ones of a size may say more."""


class Load(NamedTuple):
    """What a step computes.

    (A tuple, because a choice makes one for each number of tokens.)

    Attributes:
        tokens: that it computes, of prompts too.
        sampled: rows of logits that are drawn from.
        pairs: a computed token and one that it attends to, itself included.
    """

    tokens: int
    sampled: int
    pairs: float = 0.0


class _Size:
    """How steps of one size differ from the table and the drift, and how much they vary."""

    __slots__ = ("count", "last", "mean", "spread")

    def __init__(self) -> None:
        self.count, self.last, self.mean, self.spread = 0.0, 0, 0.0, 0.0

    def left(self, step: int) -> float:
        """The share of it that is not forgotten."""
        return float(0.5 ** ((step - self.last) / FORGOTTEN))


class CostTable:
    """Seconds of steps.

    Args:
        tokens: number of tokens -> seconds of a step of so many, without context and without drawing.
        sampled: number of rows that draw -> seconds that this adds.
        pair_s: seconds for each pair attended.
    """

    def __init__(
        self, tokens: Mapping[int, float], sampled: Mapping[int, float] | None = None, pair_s: float = 0.0
    ) -> None:
        self._tokens, self._sampled = _Curve(tokens), _Curve(sampled or {1: 0.0})
        self.pair_s = pair_s
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._drift, self._step = 0.0, 0

    @property
    def points(self) -> tuple[dict[int, float], dict[int, float]]:
        """Of (tokens, sampled), as they were measured: none falls."""
        return self._tokens.points, self._sampled.points

    def measured_at_start(self, load: Load) -> float:
        """Seconds as they were measured at start."""
        return self._tokens[load.tokens] + self._sampled[load.sampled] + self.pair_s * load.pairs

    def seconds(self, load: Load) -> float:
        """Seconds as they are now."""
        return self.known(load)[0]

    def error(self, load: Load) -> float:
        """How far, relatively, seconds() may be off for steps of this size."""
        return self.known(load)[1]

    def known(self, load: Load) -> tuple[float, float]:
        """(seconds(), error()). The error is the standard error of the size's mean; what was measured at
        start counts as FAST steps."""
        return self.growing(load, (load.pairs,))[0]

    def growing(self, load: Load, pairs: Iterable[float]) -> list[tuple[float, float]]:
        """known() of this load and of those with 1, 2, ... more tokens that are drawn from.

        Args:
            pairs: of each of them.
        """
        found: list[tuple[float, float]] = []
        tokens, sampled, _ = load
        of_tokens, of_sampled, pair_s, step = self._tokens, self._sampled, self.pair_s, self._step
        before: tuple[int, int] | None = None
        factor, error = 1.0, 0.0
        for attended in pairs:
            if (at := (bucket(tokens), bucket(sampled))) != before:
                before, differs, error = at, 0.0, 0.0
                if (size := self._sizes.get(at)) is not None:
                    differs = size.mean * size.left(step)
                    error = size.spread / math.sqrt(min(size.count, SLOW) + FAST)
                factor = math.exp(self._drift + differs)
            found.append(((of_tokens[tokens] + of_sampled[sampled] + pair_s * attended) * factor, error))
            tokens, sampled = tokens + 1, sampled + 1
        return found

    def observe(self, load: Load, seconds: float) -> None:
        """A step has taken so long; a time of 0 is unknown."""
        table = self.measured_at_start(load)
        if seconds <= 0 or table <= 0:
            return
        self._step += 1
        at = bucket(load.tokens), bucket(load.sampled)
        if (size := self._sizes.get(at)) is None:
            size = self._sizes[at] = _Size()
        left = size.left(self._step)
        differs = size.mean * left
        size.count = size.count * left + 1
        most = OUTLIER if size.count > FAST else FIRST_OUTLIER
        beyond = max(min(math.log(seconds / table) - self._drift - differs, most), -most)
        # Of the first steps of a size their difference learns most, of later ones the drift.
        size.mean = differs + beyond / min(size.count + 1, SLOW)
        size.last = self._step
        size.spread += (abs(beyond) - size.spread) / min(size.count, SLOW)
        if size.count > FAST:
            self._drift += beyond / FAST


class _Curve(dict[int, float]):
    """A measured function of a count: straight between two points, and on from the last two.

    What disturbs a measurement only ever adds to it, and more never takes less time: so each count takes at
    most what any larger one took. (A dict of the counts that were asked for: a choice asks for many.)
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        self._counts = sorted(points)
        least = accumulate((points[count] for count in reversed(self._counts)), min)
        self._values = list(least)[::-1]

    @property
    def points(self) -> dict[int, float]:
        return dict(zip(self._counts, self._values, strict=True))

    def __missing__(self, count: int) -> float:
        value = self[count] = self._at(count)
        return value

    def _at(self, count: int) -> float:
        counts, values = self._counts, self._values
        at = bisect_left(counts, count)
        if at < len(counts) and counts[at] == count:
            return values[at]
        if len(counts) == 1:
            return values[0]
        at = min(max(at, 1), len(counts) - 1)
        slope = (values[at] - values[at - 1]) / (counts[at] - counts[at - 1])
        return max(values[at - 1] + slope * (count - counts[at - 1]), 0.0)


@lru_cache(maxsize=1024)
def bucket(count: int) -> int:
    """1, 2, 3 and 4 alone, then by half octaves: 5 and 6, 7 and 8, 9 to 12, 13 to 16, ...

    Steps with equal ones, of tokens and of sampled rows, are remembered together. The table knows its steps;
    what is learned is how it is off there, and the fewer sizes there are, the less a single bad moment says,
    or a good one.
    """
    return count if count <= 4 else 4 + math.ceil(2 * math.log2(count / 4) - 1e-9)
