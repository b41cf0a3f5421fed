"""NativeSampler: the whole batch drawn in one call, without the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.draws import RowLogprobs
from octavo.kernels.ops import Backend, RowSampler
from octavo.params import SampledToken
from octavo.sampling.sampler import NO_TOKEN, RowError, Sampler, not_finite, score
from octavo.sampling.sampling_batch import F32, SamplingBatch

ERRORS = {-1: NO_TOKEN, -2: not_finite("NaN"), -3: not_finite("infinity")}
"""Why there is no token, by what stands in its place (csrc/sample.h)."""


def make_sampler(backend: Backend, vocab_size: int) -> Sampler:
    """The backend's own sampler, or the reference where it has none."""
    native = backend.sampler(vocab_size)
    return Sampler() if native is None else NativeSampler(native)


class NativeSampler(Sampler):
    """Draws what Sampler draws: equal tokens, ranks and log-probabilities, to the bit.

    Rows are shared out among the backend's threads, a lone row by pieces of the vocabulary; neither
    changes a bit.

    Attributes:
        native: the backend's own.
    """

    def __init__(self, native: RowSampler) -> None:
        self.native = native
        self._rows: npt.NDArray[Any] | None = None  # the batch that what follows is of
        self._asking: list[int] = []  # rows that ask for log-probabilities
        self._scores: RowLogprobs | None = None

    def sample(
        self, logits: F32, batch: SamplingBatch, which: Sequence[int] | None = None
    ) -> list[SampledToken | RowError]:
        if batch.rows is not self._rows:  # SamplingRows gives the same ones as long as it can
            self._rows = batch.rows
            self._records = np.ascontiguousarray(batch.rows).view(np.uint8)
            asked = batch.rows["num_logprobs"]
            self._asking = np.flatnonzero(asked >= 0).tolist()
            # Read before the next step writes it again.
            self._scores = RowLogprobs.empty(len(batch), int(asked.max())) if self._asking else None
        scores = self._scores
        tokens = self.native.sample(
            np.ascontiguousarray(logits, np.float32),
            self._records,
            batch.positions,
            batch if batch.edits else None,
            scores,
            None if which is None else np.array(which, np.int32),
        )
        drawn = results(tokens, scores, self._asking, batch)
        if batch.after is None:
            return drawn
        return batch.after(drawn, logits if which is None else logits[list(which)], batch)

    def score(self, logits: F32, tokens: Sequence[int], count: int) -> list[SampledToken]:
        scores = RowLogprobs.empty(len(tokens), count)
        given = self.native.score(
            np.ascontiguousarray(logits, np.float32), np.array(tokens, np.int32), scores
        )
        return [
            scored(tokens[row], row, scores) if known >= 0 else score(tokens[row], logits[row], count)
            for row, known in enumerate(given)
        ]


def results(
    tokens: Sequence[int], scores: RowLogprobs | None, asking: Sequence[int], batch: SamplingBatch
) -> list[SampledToken | RowError]:
    """What a sampler has drawn, as Sampler.sample returns it: an error where there is no token.

    Args:
        asking: rows that ask for log-probabilities, which are in scores.
    """
    drawn: list[SampledToken | RowError] = [
        SampledToken(t) if t >= 0 else RowError(ERRORS[t]) for t in tokens
    ]
    if scores is not None:
        for row in asking:
            if tokens[row] >= 0:
                drawn[row] = scored(tokens[row], row, scores)
    for row, message in batch.errors.items():
        drawn[row] = RowError(message)
    return drawn


def scored(token: int, row: int, scores: RowLogprobs) -> SampledToken:
    """A row's token with its log-probability, its rank, and the likeliest tokens."""
    ids = scores.top_tokens[row].tolist()
    top = tuple(zip(ids, scores.top_logprobs[row].tolist(), strict=True))
    if ids and ids[-1] < 0:  # the row asks for fewer than another
        top = top[: ids.index(-1)]
    return SampledToken(token, float(scores.logprobs[row]), int(scores.ranks[row]), top)
