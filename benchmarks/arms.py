"""Arms of one engine that take turns, compared step by step.

All arms have the same number of steps of the same sizes. Step i of one is compared with step i of another,
each by its median over all repetitions, so what else the machine does for a moment drops out. An arm that
repeats another is the control: what differs there is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Steps = np.ndarray[Any, np.dtype[np.float64]]
"""Seconds [repetitions, steps]."""


def orders(names: Sequence[str], repetition: int) -> list[str]:
    """Who goes when: every arm is in every place, and before and behind every other, equally often."""
    turn = repetition // 2 % len(names)
    turned = [*names[turn:], *names[:turn]]
    return turned[::-1] if repetition % 2 else turned


def in_turns(arms: Mapping[str, Callable[[int], Sequence[float]]], repeat: int) -> dict[str, Steps]:
    """Seconds of every arm's steps. One repetition before these warms up and is not counted.

    Args:
        arms: name -> runs the repetition of this number (0 warms up), which all arms have in common.
    """
    seconds: dict[str, list[Sequence[float]]] = {name: [] for name in arms}
    for repetition in range(repeat + 1):
        for name in orders(list(arms), repetition):
            took = arms[name](repetition)
            if repetition:
                seconds[name].append(took)
    return {name: np.array(runs) for name, runs in seconds.items()}


def typical(runs: Steps) -> float:
    """Seconds of a run: of each step the median."""
    return float(np.median(runs, axis=0).sum())


def ratio(of: Steps, to: Steps) -> float:
    """How much longer the first takes than the second."""
    return typical(of) / typical(to)


def interval(of: Steps, to: Steps, share: float = 0.95, resamples: int = 1000) -> tuple[float, float]:
    """The middle of ratio(), had other repetitions been met (a bootstrap of both arms' together)."""
    draw, edge = np.random.default_rng(0), 50 * (1 - share)
    found = []
    for _ in range(resamples):
        chosen = draw.integers(0, len(of), len(of))
        found.append(ratio(of[chosen], to[chosen]))
    low, high = np.percentile(found, (edge, 100 - edge))
    return float(low), float(high)
