"""How far counts are from what is expected of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SMALL = 5
"""Cells of which fewer are expected count as one."""
CHANCE = 4.0
"""A deviation that a right distribution exceeds once in some ten thousand times."""


def deviation(counts: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
    """Chi-square of counts [N] against probabilities [N], in standard deviations above its mean.

    What cannot happen and has happened counts as infinitely far.
    """
    found, chances = np.asarray(counts, np.float64).reshape(-1), np.asarray(probabilities).reshape(-1)
    if found[chances <= 0].any():
        return float("inf")
    expected = chances * found.sum()
    large = expected >= SMALL
    cells = [(found[large], expected[large]), (found[~large].sum(), expected[~large].sum())]
    statistic = sum(float(np.sum((n - e) ** 2 / e)) for n, e in cells if np.sum(e) > 0)
    degrees = int(large.sum()) - (expected[~large].sum() == 0)
    return float((statistic - degrees) / (2 * degrees) ** 0.5)
