"""GGML's blocks of two and three bits, in the nearest layouts that carry them.

    Q2_K     256 in 16 groups   w = d s q - dmin m       U2; s and m of four bits
    Q3_K     256 in 16 groups   w = d (s - 32) (q - 4)   U3; s of six bits
    TQ2_0    256                w = d (q - 1)            U2, whose steps are 1
    TQ1_0    256                w = d (q - 1)            U2; five q a byte, in base 3, of which the highest
                                                         digit comes first

Element j of 32 bytes' bits lies in byte j % 32. Source: ggml-common.h, ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.formats.ggml import U8, Blocks, D, Release
from octavo.quant.registry import Format

_PAIRS = np.array([0, 2, 4, 6], np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
_ONE_AND_ONE = np.uint8(0x11)


def _pairs(q: Blocks) -> U8:
    """[N, B, 64] bytes of four numbers each -> [N, B, 256]: of 32 bytes the lowest bits, then the next."""
    n, count, _ = q.shape
    return (q.reshape(n, count, 2, 1, 32) >> _PAIRS & np.uint8(3)).reshape(n, count, 256)


def _two_bits(q: U8) -> U8:
    """[N, K] numbers -> [N, K / 32, 8], the two lowest bits of each as U2 and U3 have them."""
    fields = (q.reshape(q.shape[0], -1, 4, 8) & np.uint8(3)) << _PAIRS
    return np.asarray(np.bitwise_or.reduce(fields, axis=2))


def _q2_k(blocks: Blocks, release: Release) -> Weight:
    n, count = blocks.shape
    steps = blocks["scales"].reshape(n, count * 8, 2)
    values = np.concatenate([_two_bits(_pairs(blocks["q"]).reshape(n, -1)), steps], axis=-1)
    return Weight(Layout.U2, (n, count * 256), values, blocks["d"], -blocks["dmin"], release)


def _q3_k(blocks: Blocks, release: Release) -> Weight:
    """s: four bits in the first eight bytes, group g's in byte g % 8; two in the others, in byte g % 4."""
    n, count = blocks.shape
    four, two = blocks["scales"][..., :8], blocks["scales"][..., 8:]
    low = np.concatenate([four & np.uint8(15), four >> np.uint8(4)], axis=-1)
    high = (two[:, :, None, :] >> _PAIRS & np.uint8(3)).reshape(n, count, 16)
    steps = (low | high << np.uint8(4)).reshape(n, count * 8, 2)
    third = (blocks["hmask"][:, :, None, :] >> _BITS & np.uint8(1)).reshape(n, count * 8, 8, 4) << _BITS
    parts = _two_bits(_pairs(blocks["q"]).reshape(n, -1)), np.bitwise_or.reduce(third, axis=2), steps
    return Weight(Layout.U3, (n, count * 256), np.concatenate(parts, axis=-1), blocks["d"], release=release)


def _ternary(q: U8, d: npt.NDArray[np.float16], release: Release) -> Weight:
    n, count, _ = q.shape
    packed = _two_bits(q.reshape(n, -1))
    values = np.concatenate([packed, np.full((n, count * 8, 2), _ONE_AND_ONE)], axis=-1)
    return Weight(Layout.U2, (n, count * 256), values, d, -d, release)


def _tq2_0(blocks: Blocks, release: Release) -> Weight:
    return _ternary(_pairs(blocks["q"]), blocks["d"], release)


def _digits(q: Blocks, count: int) -> U8:
    """[N, B, bytes] -> [N, B, count, bytes]: digit i of a byte is (3^i q mod 256) 3 / 256, rounded down."""
    turned = q[:, :, None, :] * _POWERS[:count, None]
    return (turned.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).astype(np.uint8)


def _tq1_0(blocks: Blocks, release: Release) -> Weight:
    n, count = blocks.shape
    parts = _digits(blocks["q"][..., :32], 5), _digits(blocks["q"][..., 32:], 5), _digits(blocks["qh"], 4)
    q = np.concatenate([part.reshape(n, count, -1) for part in parts], axis=-1)
    return _ternary(q, blocks["d"], release)


FORMATS = (
    Format(
        "Q2_K",
        256,
        np.dtype([("scales", "u1", (16,)), ("q", "u1", (64,)), D, ("dmin", "<f2")]),
        _q2_k,
    ),
    Format(
        "Q3_K",
        256,
        np.dtype([("hmask", "u1", (32,)), ("q", "u1", (64,)), ("scales", "u1", (12,)), D]),
        _q3_k,
    ),
    Format("TQ2_0", 256, np.dtype([("q", "u1", (64,)), D]), _tq2_0),
    Format("TQ1_0", 256, np.dtype([("q", "u1", (48,)), ("qh", "u1", (4,)), D]), _tq1_0),
)
