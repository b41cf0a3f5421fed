"""Prompts to measure with, and the percentiles of what was measured.

Prompts are random, so that no cache has seen them, and equal for equal seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

SPECIAL_IDS = 256
"""The lowest ids of a vocabulary are control tokens and single bytes."""
COMMON_IDS = 32_000
"""Models of unequal vocabularies get equal prompts if ids stay below the smallest in use."""


def random_prompts(count: int, length: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """count prompts of length token ids each, no two alike."""
    draw = random.Random(f"{seed} {count} {length}")
    high = min(vocab_size, COMMON_IDS)
    low = min(SPECIAL_IDS, high // 2)
    return [[draw.randrange(low, high) for _ in range(length)] for _ in range(count)]


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
