"""A SamplingBatch as the arrays of a sampler that runs on a device, and what comes back as tokens."""

from __future__ import annotations

import numpy as np

from octavo.kernels.draws import Drawn, Draws, Numbers
from octavo.params import SampledToken
from octavo.sampling.native import results
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
    asking = [] if drawn.scores is None else np.flatnonzero(batch.rows["num_logprobs"] >= 0).tolist()
    return results(drawn.tokens.tolist(), drawn.scores, asking, batch)
