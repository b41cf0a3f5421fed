"""What changes a row's logits before the draw, and which tokens the draw may choose from.

`edit` works on logits, `keep` on the weights exp((z - max z) / temperature) that follow from them.
Both see one row alone, so its bits cannot depend on the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.sampling.distribution import CHUNK, Ids, total
from octavo.sampling.elementary import log
from octavo.sampling.sampling_batch import F32, U32, SamplingBatch

Mask = npt.NDArray[np.bool_]

_ALL = np.uint32(0xFFFFFFFF)
_BIN_SHIFT = np.uint32(19)  # leaves exponent and 4 bits: 16 bins to a factor of 2
_SMALLEST = np.finfo(np.float32).tiny  # weights are 0 or at least this


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
    4. typical_p: those nearest to the average surprise, up to this share of the total.

    Args:
        weights [V]: the largest is 1.
        numbers: a row's record (ROW).
    """
    min_p, top_k, top_p = float(numbers["min_p"]), int(numbers["top_k"]), float(numbers["top_p"])
    ids: Ids | None = None
    values = weights
    if min_p > 0:
        ids, values = _narrow(ids, values, np.flatnonzero(weights >= np.float32(min_p)))
    if 0 < top_k < len(values):
        ids, values = _narrow(ids, values, _top_k(values, top_k))
    if top_p < 1:
        ids, values = _narrow(ids, values, _top_p(values, total(values, ids), top_p))
    if numbers["typical_p"] < 1:
        ids, values = _narrow(ids, values, _typical(values, ids, float(numbers["typical_p"])))
    return ids


def _narrow(ids: Ids | None, values: F32, kept: Ids) -> tuple[Ids, F32]:
    return kept if ids is None else ids[kept], values[kept]


def _top_k(values: F32, count: int) -> Ids:
    """Indices of the `count` largest values, 0 < count < len(values)."""
    return _first_largest(values, count, kth_largest(values, count))


def _top_p(values: F32, whole: float, top_p: float) -> Ids:
    """Indices of the fewest values, largest first, whose sum reaches top_p * whole (their own sum).

    Values below (1 - top_p) * whole / len(values) add up to less than may be missing, so they are not
    among the fewest.
    """
    floor = np.float32((1 - top_p) * whole / len(values) * (1 - 1e-6))
    large = values[values >= floor]
    order = ~large.view(np.uint32)  # positive floats are ordered as their bits are
    last, count = _reaching(order, large, top_p * whole)
    return _first_largest(values, count, (~last).view(np.float32))


def _typical(values: F32, ids: Ids | None, share: float) -> Ids:
    """Indices of the values nearest to the mean of their logs whose sum reaches a share of all (Meister et
    al., Locally Typical Sampling, TACL 2023, eq. 7): for w = p W, -log p - H is that mean less log w.

    Distances are of f64 and rounded to f32; of equal ones all are kept.
    """
    logs = log(np.maximum(values, _SMALLEST).astype(np.float64))
    whole = total(values, ids)
    distances = np.abs(logs - total(values * logs, ids) / whole).astype(np.float32)
    some = values > 0
    farthest, _ = _reaching(distances[some].view(np.uint32), values[some], share * whole)
    return np.flatnonzero(some & (distances.view(np.uint32) <= farthest))


def _reaching(order: U32, weights: F32, mass: float) -> tuple[np.uint32, int]:
    """Of weights in an order, smallest first: the place in it with which their sum reaches the mass, and how
    many come up to there. Sums of equal leading bits come first; only the bin that reaches it is sorted."""
    bins = order >> _BIN_SHIFT
    bins -= bins.min()
    sums = np.cumsum(np.bincount(bins, weights=weights))
    at = int(np.searchsorted(sums, min(mass, sums[-1]), side="left"))
    inside = np.flatnonzero(bins == at)
    inside = inside[np.argsort(order[inside], kind="stable")]
    reached = np.cumsum(weights[inside], dtype=np.float64) + (sums[at - 1] if at else 0.0)
    last = min(int(np.searchsorted(reached, mass, side="left")), len(inside) - 1)
    return order[inside[last]], int((bins < at).sum()) + last + 1


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
