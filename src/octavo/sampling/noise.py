"""Noise that belongs to a position: a pure function of (seed, sample index, position, stream).

Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011):
a counter goes in, 128 random bits come out, nothing is kept between calls. So a token's noise does
not depend on the batch, on what was drawn before, or on the machine that draws it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]

_ROUNDS = 10
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Stream(IntEnum):
    """What a uniform is for. Streams of one position are independent of each other.

    TARGET draws the token. A drafter whose drafts are verified by rejection must draw from DRAFT,
    because the noise of the draft and of the residual must be independent. ACCEPT decides.
    """

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2


def philox4x32(counter: U32, key: U32) -> U32:
    """counter [..., 4], key [..., 2] -> random words [..., 4]. Leading dimensions broadcast."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key[..., 0].astype(np.uint64), key[..., 1].astype(np.uint64)
    for number in range(_ROUNDS):
        round_k0 = (k0 + np.uint64(number * _WEYL_0 & 0xFFFFFFFF)) & _LOW
        round_k1 = (k1 + np.uint64(number * _WEYL_1 & 0xFFFFFFFF)) & _LOW
        product_0, product_1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> _HALF) ^ c1 ^ round_k0,
            product_1 & _LOW,
            (product_0 >> _HALF) ^ c3 ^ round_k1,
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

    The key is the seed. The counter's words are the position's low and high half, the sample index,
    and stream + 256 * index, where index tells apart several decisions at one position (siblings).

    The result has 53 bits. Philox gives 128 for the same price, and with the 24 bits of an f32 a
    token of probability 1e-9 would come once in 17 million draws, or never.

    Args:
        seeds: 64 unsigned bits.
        sample_indices: 0..n-1 of a request's n completions, below 2**32.
        positions: index of the drawn token in its sequence, >= 0.
        indices: below 2**24.
    """
    seed, sample, position, index = np.broadcast_arrays(
        np.atleast_1d(np.asarray(seeds, np.uint64)),
        np.asarray(sample_indices, np.uint64),
        np.asarray(positions, np.uint64),
        np.asarray(indices, np.uint64),
    )
    last = np.uint64(int(stream)) | index << np.uint64(8)
    counter = np.stack([position & _LOW, position >> _HALF, sample, last], axis=-1).astype(np.uint32)
    key = np.stack([seed & _LOW, seed >> _HALF], axis=-1).astype(np.uint32)
    words = philox4x32(counter, key)
    high = (words[..., 0] >> np.uint32(5)).astype(np.float64)
    low = (words[..., 1] >> np.uint32(6)).astype(np.float64)
    result: F64 = (high * 2.0**26 + low) * 2.0**-53
    return result
