"""A small house for the sampler: one call from logits and params to what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from octavo.params import SamplingParams
from octavo.sampling import SamplingBatch, SamplingRows

MakeBatch = Callable[..., SamplingBatch]


@pytest.fixture
def make_batch() -> MakeBatch:
    """make(params per row, vocab, ...) -> SamplingBatch whose row r has seed 1000 + r.

    Each row's sequence is prompt + output; the drawn token is the one after it.
    """

    def make(
        params: Sequence[SamplingParams],
        vocab: int,
        prompt: Sequence[int] = (1, 2),
        output: Sequence[int] = (),
        seeds: npt.ArrayLike | None = None,
        eos: Sequence[int] = (),
    ) -> SamplingBatch:
        rows = SamplingRows(len(params), vocab, eos)
        seed = range(1000, 1000 + len(params)) if seeds is None else np.asarray(seeds).tolist()
        for row, each in enumerate(params):
            rows.add(row, each, seed[row], 0, [*prompt, *output], len(prompt))
        return rows.batch(range(len(params)), [len(prompt) + len(output)] * len(params))

    return make
