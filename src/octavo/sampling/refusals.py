"""Refusals: asks rows' constraints about the tokens that a step draws, one after the other.

The calling thread does so while other threads still draw. It also computes the mask of a row whose token is
refused; once masks have taken ALONE_S, it leaves the others for later, to be computed on several threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from octavo.sampling.constraints import ALONE_S
from octavo.sampling.sampling_rows import SamplingRows


class Refusals:
    """Asked.refuses of a step: True where a row's constraint forbids its token; others are appended.

    The mask of a refused row is in samplings.row_mask then.

    Args:
        rows [R]: of the step, in its order.

    Attributes:
        refused: indices of rows that the decoder draws again. later: of rows that are still to be drawn.
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
