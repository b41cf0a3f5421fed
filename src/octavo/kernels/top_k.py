"""The k largest of a row: of equals at the border, those that torch.topk takes on a CPU.

Where the k-th largest is greater than the one after it, the choice is plain. Where they are equal it is
whatever the selection leaves in front that torch.topk runs over (value, index), comparing values alone: a
heap of k where there are 64 k values or more, else quickselect with the median of three, which gives up in
favour of a heap after 2 log2 n pivots (introselect, Musser 1997; libstdc++'s partial_sort and nth_element).
`choose` goes through the same swaps, and so does csrc/top_k.cpp. NaN is greater than all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Keyed = tuple[Any, int]
"""A key, greater being better, and where it stood."""


def top_k(scores: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.int64]:
    """Indices of the k largest of each row, [T, n] -> [T, k], ascending."""
    unlike = np.isnan(scores)
    order = np.argsort(np.where(unlike, -np.inf, -scores), axis=1, kind="stable")
    if k < scores.shape[1]:
        border = np.take_along_axis(scores, order[:, k - 1 : k + 1], axis=1)
        for t in np.nonzero((border[:, 0] == border[:, 1]) | unlike.any(axis=1))[0]:
            keys = [(bool(u), 0.0 if u else float(v)) for u, v in zip(unlike[t], scores[t], strict=True)]
            order[t, :k] = choose(keys, k)
    return np.sort(order[:, :k], axis=1)


def choose(keys: Sequence[Any], k: int) -> list[int]:
    """Indices of the k greatest keys, 0 < k <= n, in the order in which torch's selection leaves them."""
    keyed: list[Keyed] = [(key, i) for i, key in enumerate(keys)]
    if 64 * k <= len(keyed):
        _heap_select(keyed, 0, k, len(keyed))
    else:
        _quickselect(keyed, k - 1)
    return [i for _, i in keyed[:k]]


def _quickselect(a: list[Keyed], nth: int) -> None:
    """Puts the nth of the order at its place, and what is not worse before it."""
    first, last, depth = 0, len(a), 2 * (len(a).bit_length() - 1)
    while last - first > 3:
        if depth == 0:
            _heap_select(a, first, nth + 1, last)
            return
        depth -= 1
        cut = _partition(a, first, last)
        first, last = (cut, last) if cut <= nth else (first, cut)
    a[first:last] = sorted(a[first:last], key=lambda one: one[0], reverse=True)  # stable


def _partition(a: list[Keyed], first: int, last: int) -> int:
    """Splits [first, last) around a median of three, which goes to the front; where the worse part begins."""
    x, y, z = first + 1, first + (last - first) // 2, last - 1
    if a[x][0] > a[y][0]:
        median = y if a[y][0] > a[z][0] else z if a[x][0] > a[z][0] else x
    else:
        median = x if a[x][0] > a[z][0] else z if a[y][0] > a[z][0] else y
    a[first], a[median] = a[median], a[first]
    pivot, left, right = a[first][0], first + 1, last - 1
    while True:  # equals of the pivot stop both sides, and change places
        while a[left][0] > pivot:
            left += 1
        while pivot > a[right][0]:
            right -= 1
        if left >= right:
            return left
        a[left], a[right] = a[right], a[left]
        left, right = left + 1, right - 1


def _heap_select(a: list[Keyed], first: int, middle: int, last: int) -> None:
    """The best of [first, last) into [first, middle): a heap with its worst on top."""
    size = middle - first
    for hole in reversed(range(size // 2)):
        _sift(a, first, size, hole, a[first + hole])
    for i in range(middle, last):
        if a[i][0] > a[first][0]:
            one, a[i] = a[i], a[first]
            _sift(a, first, size, 0, one)


def _sift(a: list[Keyed], first: int, size: int, top: int, one: Keyed) -> None:
    """Fills the hole at top of the heap a[first:][:size]: down to a leaf by the worse child, then up."""
    hole = top
    while 2 * hole + 1 < size:
        child = 2 * hole + 2
        if child == size or a[first + child][0] > a[first + child - 1][0]:
            child -= 1
        a[first + hole] = a[first + child]
        hole = child
    while hole > top and a[first + (hole - 1) // 2][0] > one[0]:
        a[first + hole] = a[first + (hole - 1) // 2]
        hole = (hole - 1) // 2
    a[first + hole] = one
