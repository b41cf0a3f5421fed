"""What a beam's draw is for: the tokens that may follow it, and what they are worth."""

from __future__ import annotations

import math

import numpy as np

from octavo.params import SampledToken
from octavo.sampling.distribution import log_sum_exp
from octavo.sampling.logits import edit
from octavo.sampling.sampler import RowError, likeliest
from octavo.sampling.sampling_batch import F32, SamplingBatch


def with_candidates(
    drawn: list[SampledToken | RowError], logits: F32, batch: SamplingBatch
) -> list[SampledToken | RowError]:
    """The same, but where a beam's logits are edited its likeliest tokens are those after the edits.

    For the logits z [V] of such a beam:

    1. A forced token is the only candidate, with log-probability 0.
    2. Otherwise l = z - log_sum_exp(z) is edited as step 2 edits z, penalties thus in l and not in z
       (transformers' order with beams), and not normalized again. The candidates are the num_logprobs
       largest finite l; there may be fewer, or none.

    A row whose own logits are not finite, or whose limits cannot be followed, remains a RowError.
    """
    for row, forced in batch.beams.items():
        if row not in batch.errors and math.isfinite(logits[row].max()):
            drawn[row] = _candidates(logits[row], batch, row, forced)
    return drawn


def _candidates(logits: F32, batch: SamplingBatch, row: int, forced: int | None) -> SampledToken:
    top: tuple[tuple[int, float], ...] = ()
    if forced is not None:
        top = ((forced, 0.0),)
    else:
        normalizer = log_sum_exp(logits)
        if len(batch.seen.row(row)[0]):
            logits, normalizer = (logits - normalizer).astype(np.float32), 0.0
        edited = edit(logits, batch, row)
        count = int(batch.rows[row]["num_logprobs"])
        top = tuple((int(i), float(edited[i]) - normalizer) for i in likeliest(edited, count))
    token, logprob = top[0] if top else (0, -math.inf)
    return SampledToken(token, logprob, 1, top)
