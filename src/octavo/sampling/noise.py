"""Noise that belongs to a position: a pure function of (seed, sample index, position, stream).

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011):
a counter goes in, 128 random bits come out, nothing is kept between calls. So a token's noise does
not depend on the batch, on what was drawn before, or on the machine that draws it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from octavo.sampling.distribution import CHUNK
from octavo.sampling.elementary import F64, log

U32 = npt.NDArray[np.uint32]

_ROUNDS = 10
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Stream(IntEnum):
    """What a uniform is for. Streams of one position are independent of each other.

    TARGET draws the token. A drafter whose drafts are verified by rejection must draw from DRAFT,
    because the noise of the draft and of the residual must be independent. ACCEPT decides. AGAIN draws
    where a mask refused what TARGET drew.
    """

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    AGAIN = 3


def philox4x32(counter: U32, key: U32) -> U32:
    """counter [..., 4], key [..., 2] -> random words [..., 4]. Leading dimensions broadcast."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    steps = np.arange(_ROUNDS, dtype=np.uint64).reshape(-1, *[1] * (key.ndim - 1))
    keys_0 = (key[..., 0] + steps * _WEYL_0) & _LOW
    keys_1 = (key[..., 1] + steps * _WEYL_1) & _LOW
    for key_0, key_1 in zip(keys_0, keys_1, strict=True):
        product_0, product_1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> _HALF) ^ c1 ^ key_0,
            product_1 & _LOW,
            (product_0 >> _HALF) ^ c3 ^ key_1,
            product_0 & _LOW,
        )
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniform(
    seeds: npt.ArrayLike,
    sample_indices: npt.ArrayLike,
    positions: npt.ArrayLike,
    stream: Stream = Stream.TARGET,
    indices: npt.ArrayLike = 0,
) -> F64:
    """One number in [0, 1) per row; arguments broadcast to [R].

    Args:
        seeds: 64 unsigned bits.
        sample_indices: 0..n-1 of a request's n completions, below 2**32.
        positions: index of the drawn token in its sequence, >= 0.
        indices: tell apart several decisions at one position (siblings), below 2**24.
    """
    last = np.uint64(int(stream)) | np.asarray(indices, np.uint64) << np.uint64(8)
    return _uniforms(seeds, sample_indices, positions, last)[..., 0]


def race_noise(
    seeds: npt.ArrayLike,
    sample_indices: npt.ArrayLike,
    positions: npt.ArrayLike,
    chunks: int,
    stream: Stream = Stream.TARGET,
) -> tuple[F64, F64]:
    """Exp(1) variates -log(1 - u) for a draw: one per chunk [R, chunks], one per place [R, 256].

    The logarithm is elementary.log.
    Variates 2 i and 2 i + 1 are the two numbers of index i, at level 1 for the chunks and at level
    2 for the places. Arguments [R] as in uniform.
    """
    blocks = -(-chunks // 2)
    index = np.concatenate([np.arange(blocks), np.arange(CHUNK // 2)]).astype(np.uint64)
    level = np.repeat(np.array([1, 2], np.uint64), [blocks, CHUNK // 2])
    last = np.uint64(int(stream)) | level << np.uint64(4) | index << np.uint64(8)
    seed, sample, position = (
        np.asarray(each, np.uint64)[:, None] for each in (seeds, sample_indices, positions)
    )
    variates = -log(1.0 - _uniforms(seed, sample, position, last).reshape(-1, 2 * len(last)))
    return variates[:, :chunks], variates[:, 2 * blocks :]


def _uniforms(
    seeds: npt.ArrayLike,
    sample_indices: npt.ArrayLike,
    positions: npt.ArrayLike,
    last: npt.NDArray[np.uint64],
) -> F64:
    """Two numbers in [0, 1) per element: [..., 2].

    The key is the seed's low and high half. The counter's words are the position's low and high
    half, the sample index, and `last` = stream + 16 * level + 256 * index.

    Each number has 53 bits, from two words. Philox gives them for the same price, and with the 24
    bits of an f32 a token of probability 1e-9 would come once in 17 million draws, or never.
    """
    seed, sample, position, last = np.broadcast_arrays(
        np.atleast_1d(np.asarray(seeds, np.uint64)),
        np.asarray(sample_indices, np.uint64),
        np.asarray(positions, np.uint64),
        last,
    )
    counter = np.stack([position & _LOW, position >> _HALF, sample, last], axis=-1).astype(np.uint32)
    key = np.stack([seed & _LOW, seed >> _HALF], axis=-1).astype(np.uint32)
    words = philox4x32(counter, key)
    high = (words[..., 0::2] >> np.uint32(5)).astype(np.float64)
    low = (words[..., 1::2] >> np.uint32(6)).astype(np.float64)
    result: F64 = (high * 2.0**26 + low) * 2.0**-53
    return result
