"""How the cost of something grows: CPU time, which other work on the machine does not add to."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LINEAR = 2.5
"""Twice the input costs at most so many times as much, where the cost is in proportion to it."""


def growth(work: Callable[[int], object], size: int) -> float:
    """CPU time of work(2 * size) over that of work(size), of this thread.

    size must be large enough that work(size) takes milliseconds, and small enough that both fit into caches.
    Of each the least of several runs counts, and where a busy machine makes that too much, the least of
    several ratios: what is quadratic has 4 each time.
    """
    least = float("inf")
    for _ in range(6):
        least = min(least, _ratio(work, size))
        if least < LINEAR:
            break
    return least


def _ratio(work: Callable[[int], object], size: int, runs: int = 5) -> float:
    least = {size: float("inf"), 2 * size: float("inf")}
    gc.disable()
    try:
        for _ in range(runs):
            for each in least:
                begin = time.thread_time()
                work(each)
                least[each] = min(least[each], time.thread_time() - begin)
    finally:
        gc.enable()
    return least[2 * size] / least[size]
