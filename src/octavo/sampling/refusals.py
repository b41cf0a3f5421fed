"""Refusals: a step's drawn tokens, told to their rows' constraints one after the other.

The calling thread does so while others still draw. A mask is computed there too, where it is needed; once
masks have taken ALONE_S, the rest is left for later, to be computed on several threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from octavo.sampling.constraints import ALONE_S
from octavo.sampling.rows import SamplingRows


class Refusals:
    """Whether a row's token is refused: Asked.refuses. Allowed ones are appended.

    A refused row's mask is then in samplings.row_mask.

    Args:
        rows [R]: of the step, in its order.

    Attributes:
        refused: indices of rows that have been drawn again. later: of those that have not.
        errors: index -> why a row's constraints cannot be followed.
    """

    def __init__(self, samplings: SamplingRows, rows: Sequence[int]) -> None:
        self._samplings, self._rows = samplings, rows
        self._spent = 0.0
        self.refused: list[int] = []
        self.later: list[int] = []
        self.errors: dict[int, str] = {}

    def __call__(self, index: int, token: int) -> bool:
        row = self._rows[index]
        if self._samplings.take(row, token):
            return False
        if self._spent > ALONE_S:
            self.later.append(index)
            return False
        self.refused.append(index)
        start = time.perf_counter()
        error = self._samplings.mask(row)
        self._spent += time.perf_counter() - start
        if error is not None:
            self.errors[index] = error
        return True
