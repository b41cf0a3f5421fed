"""Prompts to measure with: random, so that no cache has seen them, and equal for equal seeds."""

from __future__ import annotations

import random

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
