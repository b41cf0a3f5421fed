"""A SamplingBatch as the arrays of a sampler that runs on a device, and what comes back as tokens."""

from __future__ import annotations

import numpy as np

from octavo.kernels.draws import Drawn, Draws, Numbers
from octavo.params import SampledToken
from octavo.sampling.native import ERRORS, scored
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_batch import SamplingBatch


class DrawMaker:
    """Turns batches into Draws; numbers are made anew only when the rows have changed."""

    def __init__(self) -> None:
        self._rows: object = None
        self._numbers: Numbers

    def draws(self, batch: SamplingBatch) -> Draws:
        if batch.rows is not self._rows:  # SamplingRows gives the same ones as long as it can
            self._rows, self._numbers = batch.rows, Numbers.of(batch.rows)
        return Draws(self._numbers, batch.positions, batch if batch.edits else None)


def read(drawn: Drawn, batch: SamplingBatch) -> list[SampledToken | RowError]:
    """Tokens, log-probabilities and errors of each row, as Sampler.sample returns them."""
    tokens = drawn.tokens.tolist()
    found: list[SampledToken | RowError] = [
        SampledToken(t) if t >= 0 else RowError(ERRORS[t]) for t in tokens
    ]
    if drawn.scores is not None:
        for row in np.flatnonzero(batch.rows["num_logprobs"] >= 0).tolist():
            if tokens[row] >= 0:
                found[row] = scored(tokens[row], row, drawn.scores)
    for row, message in batch.errors.items():
        found[row] = RowError(message)
    return found
