"""NativeSampler: the whole batch drawn in one call, without the interpreter."""

from __future__ import annotations

import numpy as np

from octavo.kernels.ops import Backend, RowSampler, TokenArrays
from octavo.params import SampledToken
from octavo.sampling.batch import F32, SamplingBatch, TokenLists
from octavo.sampling.sampler import NO_TOKEN, RowError, Sampler, not_finite

_MESSAGES = {-1: NO_TOKEN, -2: not_finite("NaN"), -3: not_finite("infinity")}  # csrc/sample.h


def make_sampler(backend: Backend, vocab_size: int) -> Sampler:
    """The backend's own sampler, or the reference where it has none."""
    native = backend.sampler(vocab_size)
    return Sampler() if native is None else NativeSampler(native)


class NativeSampler(Sampler):
    """Draws what Sampler draws: equal tokens, ranks and log-probabilities, to the bit.

    Rows are shared out among the backend's threads, a lone row by pieces of the vocabulary; neither
    changes a bit.
    """

    def __init__(self, native: RowSampler) -> None:
        self._native = native

    def sample(self, logits: F32, batch: SamplingBatch) -> list[SampledToken | RowError]:
        count = len(batch)
        most = int(batch.rows["num_logprobs"].max(initial=-1))
        token = np.empty(count, np.int32)
        logprob, rank = np.empty(count, np.float64), np.empty(count, np.int64)
        top_token = np.full((count, max(most, 0)), -1, np.int32)
        top_logprob = np.empty(top_token.shape, np.float64)
        self._native.sample(
            np.ascontiguousarray(logits, np.float32),
            np.ascontiguousarray(batch.rows).view(np.uint8).reshape(count, batch.rows.dtype.itemsize),
            batch.positions,
            _arrays(batch.bias),
            _arrays(batch.banned),
            _arrays(batch.seen),
            batch.mask,
            token,
            logprob,
            rank,
            top_token,
            top_logprob,
        )
        drawn: list[SampledToken | RowError] = [
            SampledToken(t) if t >= 0 else RowError(_MESSAGES[t]) for t in token.tolist()
        ]
        if most >= 0:
            for row in np.flatnonzero((batch.rows["num_logprobs"] >= 0) & (token >= 0)).tolist():
                ids = top_token[row].tolist()
                top = tuple((i, p) for i, p in zip(ids, top_logprob[row].tolist(), strict=True) if i >= 0)
                drawn[row] = SampledToken(int(token[row]), float(logprob[row]), int(rank[row]), top)
        for row, message in batch.errors.items():
            drawn[row] = RowError(message)
        return drawn


def _arrays(lists: TokenLists) -> TokenArrays:
    return lists.starts, lists.tokens, lists.values
