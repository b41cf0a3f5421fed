"""A SamplingBatch as the arrays of a sampler that runs on a device, and what comes back as tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.kernels.draws import Drawn, Draws, Edits, Numbers
from octavo.params import SampledToken
from octavo.sampling.batch import SamplingBatch, TokenLists
from octavo.sampling.native import ERRORS
from octavo.sampling.sampler import RowError


class DrawMaker:
    """Turns batches into Draws; numbers are made anew only when the rows have changed."""

    def __init__(self) -> None:
        self._rows: object = None
        self._numbers: Numbers

    def draws(self, batch: SamplingBatch) -> Draws:
        if batch.rows is not self._rows:  # SamplingRows gives the same ones as long as it can
            self._rows, self._numbers = batch.rows, _numbers(batch)
        edits = None
        if batch.edits:
            edits = Edits(_arrays(batch.bias), _arrays(batch.banned), _arrays(batch.seen), batch.mask)
        return Draws(self._numbers, batch.positions, edits)


def read(drawn: Drawn, batch: SamplingBatch) -> list[SampledToken | RowError]:
    """Tokens, log-probabilities and errors of each row, as Sampler.sample returns them."""
    tokens = drawn.tokens.tolist()
    found: list[SampledToken | RowError] = [
        SampledToken(t) if t >= 0 else RowError(ERRORS[t]) for t in tokens
    ]
    if drawn.logprobs is not None:
        for row, asked in enumerate(batch.rows["num_logprobs"].tolist()):
            if asked >= 0 and tokens[row] >= 0:
                found[row] = _scored(drawn, row, tokens[row])
    for row, message in batch.errors.items():
        found[row] = RowError(message)
    return found


def _scored(drawn: Drawn, row: int, token: int) -> SampledToken:
    assert drawn.logprobs is not None
    assert drawn.ranks is not None
    assert drawn.top_tokens is not None
    assert drawn.top_logprobs is not None
    pairs = zip(drawn.top_tokens[row].tolist(), drawn.top_logprobs[row].tolist(), strict=True)
    top: Sequence[tuple[int, float]] = [pair for pair in pairs if pair[0] >= 0]
    return SampledToken(token, float(drawn.logprobs[row]), int(drawn.ranks[row]), tuple(top))


def _numbers(batch: SamplingBatch) -> Numbers:
    rows = batch.rows
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.minimum(np.float32(1) / rows["temperature"], np.finfo(np.float32).max)
    penalties = [rows[f"{kind}_penalty"] for kind in ("repetition", "frequency", "presence")]
    return Numbers(
        rows["seed"].copy(),
        rows["sample_index"].copy(),
        np.where(rows["temperature"] > 0, inverse, np.float32(0)).astype(np.float32),
        rows["min_p"].copy(),
        rows["top_p"].copy(),
        rows["top_k"].copy(),
        np.array(penalties, np.float32),
        rows["num_logprobs"].copy(),
    )


def _arrays(lists: TokenLists) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return lists.starts, lists.tokens, lists.values
