"""Medians and percentiles, as benchmarks report them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least this share of all reach.

    Args:
        share: 0 < share <= 1; 0.5 is the (lower) median.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a percentile needs at least one value")
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def spread(values: Sequence[float]) -> float:
    """Highest over lowest: 1.0 is a quiet machine."""
    return max(values) / min(values)
