"""Sums over a vocabulary in an order that every backend can keep, and the draw that follows it.

The order: token ids ascending, in chunks of 256; inside a chunk one after another; then the chunks
one after another. All in float64. A token that was dropped weighs 0 and changes no sum, so a few
kept tokens and the whole vocabulary with zeros give the same bits.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from octavo.sampling.batch import F32

CHUNK = 256

Ids = npt.NDArray[np.intp]
F64 = npt.NDArray[np.float64]


def total(weights: F32, ids: Ids | None = None) -> F64:
    """Running sum over the chunks, the last being the total: [number of chunks].

    Args:
        weights: of all tokens [V], or of the tokens `ids` (ascending), as many as those.
    """
    if ids is not None:
        return np.cumsum(np.bincount(ids // CHUNK, weights=weights))
    return np.cumsum(_chunk_sums(weights))


def _chunk_sums(values: F32) -> F64:
    """Sum of each chunk, one element after another: adding whole chunks' worth of columns at once."""
    chunks = -(-len(values) // CHUNK)
    columns = np.zeros((CHUNK, chunks), np.float64)
    whole = len(values) // CHUNK
    columns[:, :whole] = values[: whole * CHUNK].reshape(whole, CHUNK).T
    columns[: len(values) - whole * CHUNK, whole:] = values[whole * CHUNK :, None]
    sums: F64 = np.add.reduce(columns, axis=0)
    return sums


def draw(weights: F32, ids: Ids | None, uniform: float) -> int:
    """Inverse CDF: the lowest token id whose running sum exceeds uniform * the total.

    Args:
        weights [V]: >= 0, the largest is 1.
        ids: the kept tokens, ascending; None is all.
        uniform: in [0, 1).
    """
    kept = weights if ids is None else weights[ids]
    prefix = total(kept, ids)
    target = uniform * float(prefix[-1])
    chunk = int(np.searchsorted(prefix, target, side="right"))
    bounds = chunk * CHUNK, chunk * CHUNK + CHUNK
    low, high = bounds if ids is None else (int(i) for i in np.searchsorted(ids, bounds))
    inside = np.cumsum(kept[low:high], dtype=np.float64)
    below = float(prefix[chunk - 1]) if chunk else 0.0
    index = int(np.searchsorted(inside, target - below, side="right"))
    if index == len(inside):  # rounding in target - below; the chunk's last weight is meant
        index = int(np.searchsorted(inside, inside[-1], side="left"))
    return low + index if ids is None else int(ids[low + index])


def log_sum_exp(logits: F32) -> float:
    """log of the sum of exp(logits) [V], of which at least one is finite and none NaN or +inf.

    Each chunk's maximum m_c and s_c = sum of exp(z - m_c); then M = max m_c, and M + log of the sum
    of s_c * exp(m_c - M), chunks ascending. Exponentials inside a chunk are f32, all else is f64.
    """
    chunks = -(-len(logits) // CHUNK)
    padded = np.full(chunks * CHUNK, -np.inf, np.float32)
    padded[: len(logits)] = logits
    table = padded.reshape(chunks, CHUNK)
    maxima = table.max(axis=1)
    offsets = np.where(np.isneginf(maxima), np.float32(0), maxima)
    sums = _chunk_sums(np.exp(table - offsets[:, None]).reshape(-1))
    peak = float(maxima.max())
    return peak + math.log(np.cumsum(sums * np.exp(offsets.astype(np.float64) - peak))[-1])
