"""Sums over a vocabulary in an order that every backend can keep, and the draw that rests on it.

The order: token ids ascending, in chunks of 256. In a chunk token t belongs to lane t mod 16; each
lane is added up one token after another, then the 16 lanes by halves (8, 4, 2, 1). Then the chunks
one after another. All in float64. A token that was dropped weighs 0 and changes no sum, so a few
kept tokens and the whole vocabulary with zeros give the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.sampling.elementary import F32, F64, exp_negative, log

CHUNK = 256
LANES = 16

Ids = npt.NDArray[np.intp]


def chunk_sums(weights: F32 | F64, ids: Ids | None = None) -> F64:
    """Sum of each chunk: [number of chunks].

    Args:
        weights: of all tokens [V], or of the tokens `ids` (ascending), as many as those; then
            chunks after the last of them are left out.
    """
    if ids is not None:
        chunks = int(ids[-1]) // CHUNK + 1
        sums: F64 = np.bincount(ids // CHUNK * LANES + ids % LANES, weights, chunks * LANES).astype(
            np.float64
        )
        return _fold(sums.reshape(chunks, LANES))
    chunks = -(-len(weights) // CHUNK)
    table: F64 = np.zeros(chunks * CHUNK, np.float64)
    table[: len(weights)] = weights
    steps = table.reshape(chunks, CHUNK // LANES, LANES)
    lanes: F64 = steps[:, 0]
    for step in range(1, CHUNK // LANES):
        lanes = lanes + steps[:, step]
    return _fold(lanes)


def _fold(lanes: F64) -> F64:
    """Add lanes [chunks, 16] up by halves."""
    while (half := lanes.shape[1] // 2) > 0:
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def total(weights: F32 | F64, ids: Ids | None = None) -> float:
    """Sum of all weights, chunk after chunk. Arguments as in chunk_sums."""
    return float(np.cumsum(chunk_sums(weights, ids))[-1])


def draw(weights: F32, ids: Ids | None, chunk_noise: F64, token_noise: F64) -> int:
    """A token with probability weight / total: a race of exponentials, run twice.

    Chunk c arrives at chunk_noise[c] / (its sum), and the first to arrive is chosen; in it token t
    arrives at token_noise[t mod 256] / weight, and the first is drawn. Of equals, the lowest id.

    The first of Exp(1) / w_i is i with probability w_i / sum w (the Gumbel-max trick, its logarithm
    left out), so a chunk and then a token of the chunk have the right product. Two distributions
    that differ little share most of their winners, which is what speculation lives on.

    Args:
        weights [V]: >= 0, the largest is 1.
        ids: the kept tokens, ascending; None is all.
        chunk_noise [>= number of chunks], token_noise [256]: Exp(1).
    """
    kept = weights if ids is None else weights[ids]
    chunk = _first(chunk_noise, chunk_sums(kept, ids))
    bounds = chunk * CHUNK, chunk * CHUNK + CHUNK
    low, high = bounds if ids is None else (int(i) for i in np.searchsorted(ids, bounds))
    members = kept[low:high].astype(np.float64)
    if ids is None:
        return low + _first(token_noise, members)
    return int(ids[low + _first(token_noise[ids[low:high] % CHUNK], members)])


def _first(noise: F64, rates: F64) -> int:
    """Index of the first to arrive; rate 0 never does."""
    times = np.full(len(rates), np.inf)
    np.divide(noise[: len(rates)], rates, out=times, where=rates > 0)
    return int(times.argmin())


def log_sum_exp(logits: F32) -> float:
    """log of the sum of exp(logits) [V], of which at least one is finite and none NaN or +inf.

    Each chunk's maximum m_c and s_c = sum of exp(z - m_c); then M = max m_c, and M + log of the sum
    of s_c * exp(m_c - M), chunks ascending. Exponentials are f32 (elementary.py), all else is f64.
    """
    chunks = -(-len(logits) // CHUNK)
    padded = np.full(chunks * CHUNK, -np.inf, np.float32)
    padded[: len(logits)] = logits
    table = padded.reshape(chunks, CHUNK)
    maxima = table.max(axis=1)
    offsets = np.where(np.isneginf(maxima), np.float32(0), maxima)
    with np.errstate(over="ignore"):  # a difference beyond f32 is -inf, which is right
        sums = chunk_sums(exp_negative((table - offsets[:, None]).reshape(-1)))
        factors = exp_negative(maxima - maxima.max())
    return float(maxima.max()) + float(log(np.cumsum(sums * factors)[-1:])[0])
