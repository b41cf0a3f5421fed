"""Sampler: logits in, tokens out. The reference that native ones are equal to (native.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import NO_TOKEN_ALLOWED
from octavo.params import SampledToken
from octavo.sampling.distribution import CHUNK, Ids, draw, log_sum_exp, total
from octavo.sampling.elementary import F64, exp_negative
from octavo.sampling.logits import allowed, edit, keep, kth_largest
from octavo.sampling.noise import Stream, race_noise
from octavo.sampling.sampling_batch import F32, SamplingBatch, drawn_free

Noise = tuple[F64, F64]
"""Of one draw: for each chunk, and for each place in a chunk."""

NO_TOKEN = f"{NO_TOKEN_ALLOWED}: every logit is -inf after bias, min_tokens and the limits"


def not_finite(what: str) -> str:
    return f"the model's logits hold {what}"


@dataclass(frozen=True, slots=True)
class RowError:
    """This row's logits allow no draw; a one-line message. Other rows are unharmed."""

    message: str


class Sampler:
    """Draws one token per row. A row's result is a function of that row alone, at any batch size.

    For a row with logits z [V], in this order:

    1. A NaN or +inf in z, or no finite value: the row is a RowError. -inf is a masked token.
    2. z' = z edited (logits.edit): logit_bias, then the boost, then banned stop ids and the row's
       mask, then the repetition penalty, then the frequency and presence penalties. If no finite value
       is left, or the batch has an error for the row: a RowError.
    3. temperature 0 (in f32): the token is argmax z', of equals the lowest id. Go to 8.
    4. Weights w = exp((z' - max z') * (1 / temperature)), in f32 (elementary.exp_negative).
    5. Kept tokens (logits.keep): min_p, top_k, top_p, then typical_p, each on what is left.
    6. Noise from (seed, sample index, position): one Exp(1) for each chunk of 256 token ids and one
       for each place in a chunk (noise.race_noise).
    7. The chunk with the smallest noise / sum of its kept w, sums in float64 in the order of
       distribution.py; in it the token with the smallest noise / w (distribution.draw).

       A row with a mask that nothing of 5 narrows goes through 2 to 7 without its mask first.
       If that gives a token which the mask allows, it is the row's. Otherwise the row goes through them
       with its mask, and with independent noise (Stream.AGAIN). Both together draw from the masked
       distribution, and a mask that would have changed nothing need not be known (decision 0008).

    8. Where logprobs are asked for, they are of the raw distribution: z_i - log_sum_exp(z), whatever
       2 to 5 did. rank counts larger z, and equal z with a lower id, plus 1; top holds the
       num_logprobs largest finite z in the same order.

    The weights, sums and choices of steps 2 to 7 read nothing but the row, so a draft is verified
    by drawing at each of its positions and comparing (runtime/drafted.py).
    """

    def sample(
        self, logits: F32, batch: SamplingBatch, which: Sequence[int] | None = None
    ) -> list[SampledToken | RowError]:
        """Draw for every row of the batch.

        Args:
            logits [L, V]: f32, read only.
            batch: R rows.
            which [R]: each row's place in the logits; None: L = R, in their order.
        """
        if which is not None:
            logits = logits[list(which)]
        greedy = batch.rows["temperature"] == 0
        best = logits.argmax(axis=1)  # the first NaN, if there is one
        peaks = logits[np.arange(len(best)), best]
        chunks = token_noise = np.zeros((len(best), 0))
        if not greedy.all():
            keys = batch.rows["seed"], batch.rows["sample_index"], batch.positions
            chunks, token_noise = race_noise(*keys, -(-logits.shape[1] // CHUNK))
        drawn: list[SampledToken | RowError] = []
        for row, token in enumerate(best.tolist()):
            result: int | RowError = token
            if row in batch.errors:
                result = RowError(batch.errors[row])
            elif not greedy[row] or batch.edits or not math.isfinite(peaks[row]):
                result = _draw(logits[row], batch, row, (chunks[row], token_noise[row]))
            drawn.append(_report(result, logits[row], batch.rows[row]))
        return drawn if batch.after is None else batch.after(drawn, logits, batch)

    def score(self, logits: F32, tokens: Sequence[int], count: int) -> list[SampledToken]:
        """Given tokens, one a row, with their log-probabilities and the `count` likeliest ones (step 8).

        Args:
            logits [R, V]: f32, read only.
        """
        return [score(token, row, count) for token, row in zip(tokens, logits, strict=True)]

    def probabilities(self, logits: F32, batch: SamplingBatch) -> tuple[F64, dict[int, RowError]]:
        """What sample draws from: p [R, V] in float64, each row's sum 1 up to rounding.

        Greedy rows are one-hot. Rows in the second result are errors, and all zero in the first.
        """
        result = np.zeros(logits.shape, np.float64)
        errors: dict[int, RowError] = {}
        for row in range(len(batch)):
            edited = _checked(logits[row], batch, row)
            if isinstance(edited, RowError):
                errors[row] = edited
            elif batch.rows["temperature"][row] == 0:
                result[row, edited.argmax()] = 1
            else:
                weights, ids = _weights(edited, batch.rows[row])
                at: Ids | slice = slice(None) if ids is None else ids
                result[row, at] = weights[at] / total(weights[at], ids)
        return result, errors


def _checked(logits: F32, batch: SamplingBatch, row: int, masked: bool = True) -> F32 | RowError:
    """Steps 1 and 2."""
    peak = logits.max()
    if not math.isfinite(peak):
        return _not_finite(peak)
    with np.errstate(over="ignore"):  # penalties may push a huge logit to +inf, which is reported
        edited = edit(logits, batch, row, masked)
    peak = edited.max()
    return edited if math.isfinite(peak) else _not_finite(peak)


def _not_finite(peak: np.float32) -> RowError:
    if np.isneginf(peak):
        return RowError(NO_TOKEN)
    return RowError(not_finite("NaN" if np.isnan(peak) else "infinity"))


def _weights(edited: F32, params: Any) -> tuple[F32, Ids | None]:
    """Steps 4 and 5: weights of all tokens, and the ids that are kept."""
    with np.errstate(over="ignore"):  # a small temperature makes -inf of it, which is right
        inverse = np.minimum(np.float32(1) / params["temperature"], np.finfo(np.float32).max)
        weights = exp_negative((edited - edited.max()) * inverse)
    return weights, keep(weights, params)


def _draw(logits: F32, batch: SamplingBatch, row: int, noise: Noise) -> int | RowError:
    """Steps 1 to 7 for one row."""
    record = batch.rows[row]
    if batch.mask is None or not drawn_free(record):
        return _race(_checked(logits, batch, row), record, noise)
    token = _race(_checked(logits, batch, row, masked=False), record, noise)
    if isinstance(token, int) and allowed(batch.mask[row], len(logits))[token]:
        return token
    if record["temperature"] > 0:
        one = slice(row, row + 1)
        keys = batch.rows["seed"][one], batch.rows["sample_index"][one], batch.positions[one]
        chunks, places = race_noise(*keys, len(noise[0]), Stream.AGAIN)
        noise = chunks[0], places[0]
    return _race(_checked(logits, batch, row), record, noise)


def _race(edited: F32 | RowError, record: Any, noise: Noise) -> int | RowError:
    """Steps 3 to 7."""
    if isinstance(edited, RowError):
        return edited
    if record["temperature"] == 0:
        return int(edited.argmax())
    weights, ids = _weights(edited, record)
    return draw(weights, ids, *noise)


def _report(result: int | RowError, logits: F32, params: npt.NDArray[Any]) -> SampledToken | RowError:
    """Step 8."""
    if isinstance(result, RowError):
        return result
    count = int(params["num_logprobs"])
    return SampledToken(result) if count < 0 else score(result, logits, count)


def score(token: int, logits: F32, count: int) -> SampledToken:
    """The token with its log-probability under logits [V], and the `count` likeliest ones (step 8)."""
    normalizer = log_sum_exp(logits)
    value = logits[token]
    rank = 1 + int((logits > value).sum()) + int((logits[:token] == value).sum())
    top = tuple((int(i), float(logits[i]) - normalizer) for i in likeliest(logits, count))
    return SampledToken(token, float(value) - normalizer, rank, top)


def likeliest(logits: F32, count: int) -> Ids:
    """Ids of the `count` largest finite logits, best first; of equals the lowest id first."""
    count = min(count, len(logits))
    if count == 0:
        return np.zeros(0, np.intp)
    ids = np.flatnonzero(logits >= kth_largest(logits, count))
    ids = ids[np.isfinite(logits[ids])]
    return ids[np.lexsort((ids, -logits[ids]))][:count]
