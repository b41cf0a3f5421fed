"""What changes a row's logits before the draw, and which tokens the draw may choose from.

`edit` works on logits, `keep` on the weights exp((z - max z) / temperature) that follow from them.
Both see one row alone, so its bits cannot depend on the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.sampling.distribution import CHUNK, Ids, total
from octavo.sampling.sampling_batch import F32, U32, SamplingBatch

Mask = npt.NDArray[np.bool_]

_ALL = np.uint32(0xFFFFFFFF)
_BIN_SHIFT = np.uint32(19)  # leaves exponent and 4 bits: 16 bins to a factor of 2


def edit(logits: F32, batch: SamplingBatch, row: int, masked: bool = True) -> F32:
    """The row's logits [V] after everything that changes single tokens, in this order:

    1. logit_bias is added.
    1a. The row's delta is added where its bit of the boost is set; nothing, if it is 0.
    2. Banned tokens (stop ids before min_tokens) and those outside the row's mask become -inf.
    3. repetition_penalty r, on every token of prompt and output: z > 0 becomes z / r, else z * r.
    4. frequency_penalty f and presence_penalty p, on every token of the output, seen count times:
       z - f * count - p.

    masked: False leaves the row's mask out, as if it allowed every token.

    Returns the argument itself where nothing changes, a copy otherwise.
    """
    bias_tokens, bias = batch.bias.row(row)
    banned, _ = batch.banned.row(row)
    seen, counts = batch.seen.row(row)
    boost = batch.boost if batch.boost is not None and batch.boost.deltas[row] != 0 else None
    mask = batch.mask[row] if masked and batch.mask is not None else None
    if mask is not None and (mask == _ALL).all():  # a mask that allows all costs a copy for nothing
        mask = None
    if not (len(bias_tokens) or len(banned) or len(seen) or boost is not None or mask is not None):
        return logits
    edited = logits.copy()
    edited[bias_tokens] += bias
    if boost is not None:
        edited[allowed(boost.bits[row], len(edited))] += boost.deltas[row]
    edited[banned] = -np.inf
    if mask is not None:
        edited[~allowed(mask, len(edited))] = -np.inf
    if len(seen):  # only rows with a penalty have any
        params = batch.rows[row]
        repetition = params["repetition_penalty"]
        values = edited[seen]
        values = np.where(values > 0, values / repetition, values * repetition)
        values -= params["frequency_penalty"] * counts
        values -= params["presence_penalty"] * (counts > 0)
        edited[seen] = values
    return edited


def allowed(mask: U32, vocab_size: int) -> Mask:
    """Packed bits [ceil(V / 32)], of a mask for instance, as one bool per token [V]."""
    words = mask.astype("<u4", copy=False)
    return np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little").view(np.bool_)


def keep(weights: F32, numbers: Any) -> Ids | None:
    """Token ids in ascending order from which the draw chooses; None is all of them.

    In this order, each on what the one before left:

    1. min_p: weights >= min_p * the largest weight.
    2. top_k: the k largest; of equal weights the lowest ids.
    3. top_p: the fewest that reach top_p of the total, taken from the largest down, of equal
       weights the lowest ids. The one that reaches it is kept.

    Args:
        weights [V]: the largest is 1.
        numbers: a row's record (ROW).
        min_p: 0 keeps all.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
    """
    min_p, top_k, top_p = float(numbers["min_p"]), int(numbers["top_k"]), float(numbers["top_p"])
    ids: Ids | None = None
    if min_p > 0:
        ids = np.flatnonzero(weights >= np.float32(min_p))
    if 0 < top_k < (len(weights) if ids is None else len(ids)):
        ids = _narrow(ids, _top_k(weights if ids is None else weights[ids], top_k))
    if top_p < 1:
        values = weights if ids is None else weights[ids]
        ids = _narrow(ids, _top_p(values, total(values, ids), top_p))
    return ids


def _narrow(ids: Ids | None, kept: Ids) -> Ids:
    return kept if ids is None else ids[kept]


def _top_k(values: F32, count: int) -> Ids:
    """Indices of the `count` largest values, 0 < count < len(values)."""
    return _first_largest(values, count, kth_largest(values, count))


def _top_p(values: F32, whole: float, top_p: float) -> Ids:
    """Indices of the fewest values, largest first, whose sum reaches top_p * whole (their own sum).

    Without sorting them all: values below (1 - top_p) * whole / len(values) add up to less than may
    be missing, so they are not among the fewest. The others are summed by bins of the same leading
    bits, largest bin first; only the bin in which the sum is reached is sorted.
    """
    mass = top_p * whole
    floor = np.float32((1 - top_p) * whole / len(values) * (1 - 1e-6))
    large = values[values >= floor]
    bins = large.view(np.uint32) >> _BIN_SHIFT  # positive floats are ordered as their bits are
    sums = np.cumsum(np.bincount(bins, weights=large)[::-1])
    at = int(np.searchsorted(sums, min(mass, sums[-1]), side="left"))
    crossing = int(bins.max()) - at
    ordered = np.sort(large[bins == crossing])[::-1]
    inside = np.cumsum(ordered, dtype=np.float64) + (sums[at - 1] if at else 0.0)
    last = min(int(np.searchsorted(inside, mass, side="left")), len(ordered) - 1)
    return _first_largest(values, int((bins > crossing).sum()) + last + 1, ordered[last])


def kth_largest(values: F32, k: int) -> np.float32:
    """The k-th largest value, 1 <= k <= len(values), without sorting them all.

    At least k values reach the k-th largest of the chunks' maxima, so the rest need not be looked at.
    """
    whole = len(values) // CHUNK
    if whole > k:
        maxima = values[: whole * CHUNK].reshape(whole, CHUNK).max(axis=1)
        values = values[values >= np.partition(maxima, whole - k)[whole - k]]
    result: np.float32 = np.partition(values, len(values) - k)[len(values) - k]
    return result


def _first_largest(values: F32, count: int, threshold: np.float32) -> Ids:
    """Indices, ascending, of the `count` largest; threshold is the smallest of them. Ties: lowest."""
    indices = np.flatnonzero(values >= threshold)
    if len(indices) == count:
        return indices
    above: Mask = values[indices] > threshold
    ties = np.flatnonzero(~above)
    above[ties[: count - int(above.sum())]] = True
    return indices[above]
