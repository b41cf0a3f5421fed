"""The arithmetic of the draw in Triton, each line rounded as sampling/elementary.py and noise.py round it.

Kernels that use it must be launched with enable_fp_fusion=False.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = tl.constexpr(256)
LANES = tl.constexpr(16)
NO_TOKEN, NOT_A_NUMBER, INFINITE = tl.constexpr(-1), tl.constexpr(-2), tl.constexpr(-3)
"""Written in a token's place where a row allows no draw (sampling/native.py has their texts)."""

_LOWEST = tl.constexpr(-87.33)
_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves an integer in f32, rounded to even
NOBODY = tl.constexpr(2**31 - 1)
STREAM_AGAIN = tl.constexpr(3)
"""sampling.noise.Stream.AGAIN."""


@triton.jit
def exp_negative(x):
    """elementary.exp_negative."""
    bounded = tl.maximum(x, _LOWEST)
    n = (bounded * 1.44269504 + _ROUNDING) - _ROUNDING
    r = bounded - n * 0.693145752
    r = r - n * 1.42860677e-6
    p = r * 1.393366939e-3
    p = (p + 8.363192819e-3) * r
    p = (p + 4.166646474e-2) * r
    p = (p + 1.666657690e-1) * r
    p = p + 5.000000013e-1
    p = p * (r * r)
    p = p + r
    p = p + 1.0
    p = p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < _LOWEST, 0.0, p)


@triton.jit
def log(x):
    """elementary.log of float64."""
    bits = x.to(tl.int64, bitcast=True)
    m = ((bits & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000).to(tl.float64, bitcast=True)
    small = m < 0.7071067811865476
    e = (((bits >> 52) & 0x7FF) - 1022 - small.to(tl.int64)).to(tl.float64)
    m = tl.where(small, m + m, m)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = z * (2 / 21)
    for i in tl.static_range(9):
        p = (p + 2 / (19 - 2 * i)) * z
    p = (p + 2.0) * s
    return e * 0.6931471803691238 + (p + e * 1.9082149292705877e-10)


@triton.jit
def exponential(seed, sample, position, stream, level: tl.constexpr, place):
    """noise.race_noise: the Exp(1) variates of these places [N], at level 1 (chunks) or 2 (tokens)."""
    last = ((place // 2) * 256 + level * 16 + stream).to(tl.uint32)
    low = (last * 0) + (position & 0xFFFFFFFF).to(tl.uint32)
    high = (last * 0) + (position >> 32).to(tl.uint32)
    index = (last * 0) + sample.to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, low, high, index, last)
    odd = place % 2 == 1
    upper = tl.where(odd, w2, w0) >> 5
    lower = tl.where(odd, w3, w1) >> 6
    u = (upper.to(tl.float64) * 67108864.0 + lower.to(tl.float64)) * 1.1102230246251565e-16
    return 0.0 - log(1.0 - u)


@triton.jit
def halve(x, HALF: tl.constexpr):
    """[G, 2 HALF] -> [G, HALF]: the first half plus the second."""
    a, b = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, HALF)), (0, 2, 1)))
    return a + b


@triton.jit
def fold(x):
    """Add up 16 lanes [G, 16] by halves: 8, 4, 2, 1. [G]."""
    return tl.reshape(halve(halve(halve(halve(x, 8), 4), 2), 1), (x.shape[0],))


@triton.jit
def first(times, index):
    """(the index of the smallest, of equals the lowest)."""
    return tl.min(tl.where(times == tl.min(times, axis=0), index, NOBODY), axis=0)


@triton.jit
def of_chunks(numbers, row, c, chunks, other):
    """A row of [rows, chunks] at the chunks c, and `other` beyond the last."""
    return tl.load(numbers + row.to(tl.int64) * chunks + c, mask=c < chunks, other=other)


@triton.jit
def weigh(z, inside, peak, inverse):
    """Weights of tokens, 0 outside of the vocabulary."""
    v = tl.load(z, mask=inside, other=float("-inf"))
    return tl.where(inside, exp_negative((v - peak) * inverse), 0.0)


@triton.jit
def keeps(w, ids, threshold, last):
    """Whether a token is kept: above the threshold, or at it with an id up to last."""
    return (w > threshold) | ((w == threshold) & (ids <= last))
