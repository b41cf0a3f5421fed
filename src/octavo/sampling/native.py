"""NativeSampler: the whole batch drawn in one call, without the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.ops import Backend, RowSampler, TokenArrays
from octavo.params import SampledToken
from octavo.sampling.batch import F32, I32, I64, ROW, SamplingBatch, TokenLists
from octavo.sampling.elementary import F64
from octavo.sampling.sampler import NO_TOKEN, RowError, Sampler, not_finite, score, with_candidates

Scores = tuple[F64, I64, I32, F64]
"""Log-probability and rank of each row's token; ids and log-probabilities of the likeliest [R, most]."""

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
        self._rows: npt.NDArray[Any] | None = None

    def sample(self, logits: F32, batch: SamplingBatch) -> list[SampledToken | RowError]:
        if batch.rows is not self._rows:  # SamplingRows gives the same ones as long as it can
            self._rows = batch.rows
            self._records = np.ascontiguousarray(batch.rows).view(np.uint8)
            self._most = int(batch.rows["num_logprobs"].max(initial=-1))
        scores = _NO_SCORES if self._most < 0 else _scores(len(batch), self._most)
        tokens = self.native.sample(
            np.ascontiguousarray(logits, np.float32),
            self._records,
            batch.positions,
            _arrays(batch.bias),
            _arrays(batch.banned),
            _arrays(batch.seen),
            batch.mask,
            None,
            *scores,
        )
        drawn: list[SampledToken | RowError] = [
            SampledToken(t) if t >= 0 else RowError(ERRORS[t]) for t in tokens
        ]
        for row, asked in enumerate(batch.rows["num_logprobs"].tolist() if self._most >= 0 else ()):
            if asked >= 0 and tokens[row] >= 0:
                drawn[row] = _scored(tokens[row], row, scores)
        for row, message in batch.errors.items():
            drawn[row] = RowError(message)
        return drawn if not batch.beams else with_candidates(drawn, logits, batch)

    def score(self, logits: F32, tokens: Sequence[int], count: int) -> list[SampledToken]:
        rows = np.zeros(len(tokens), ROW)
        rows["num_logprobs"] = count
        none = _arrays(TokenLists.none(len(tokens)))
        scores = _scores(len(tokens), count)
        given = self.native.sample(
            np.ascontiguousarray(logits, np.float32),
            rows.view(np.uint8),
            np.zeros(len(tokens), np.int64),
            none,
            none,
            none,
            None,
            np.array(tokens, np.int32),
            *scores,
        )
        return [
            _scored(tokens[row], row, scores) if known >= 0 else score(tokens[row], logits[row], count)
            for row, known in enumerate(given)
        ]


def _scores(rows: int, most: int) -> Scores:
    return (
        np.empty(rows, np.float64),
        np.empty(rows, np.int64),
        np.full((rows, most), -1, np.int32),
        np.empty((rows, most), np.float64),
    )


_NO_SCORES = _scores(0, 0)


def _scored(token: int, row: int, scores: Scores) -> SampledToken:
    logprob, rank, top_token, top_logprob = scores
    pairs = zip(top_token[row].tolist(), top_logprob[row].tolist(), strict=True)
    top = tuple(pair for pair in pairs if pair[0] >= 0)
    return SampledToken(token, float(logprob[row]), int(rank[row]), top)


def _arrays(lists: TokenLists) -> TokenArrays:
    return lists.starts, lists.tokens, lists.values
