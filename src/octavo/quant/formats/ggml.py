"""GGML's blocks: how each format's bytes are stored, and what Weight they are. Source: ggml-common.h.

    Q4_0   d, 16 bytes q        w = d (q - 8)         low nibbles: elements 0 to 15, high ones: 16 to 31
    Q4_1   d, m, 16 bytes q     w = d q + m           likewise
    Q5_0   d, 4 + 16 bytes q    w = d (q - 16)        bit j of the first four bytes is element j's fifth
    Q5_1   d, m, 4 + 16 bytes   w = d q + m           likewise
    Q8_0   d, 32 bytes q        w = d q
    Q4_K   256 in 8 groups      w = d s q - dmin m    K4; s and m of six bits
    Q5_K   256 in 8 groups      w = d s q - dmin m    K5; bit g of qh[j]: the fifth of element j of group g
    Q6_K   256 in 16 groups     w = d s (q - 32)      K6; s of eight bits

d, m and dmin are f16. A block of the first five has 32 elements, whose bytes lie as a layout has them: they
are views of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import F32Array, Layout, Weight
from octavo.quant import ggml_blocks
from octavo.quant.packing import nibbles
from octavo.quant.registry import Format

U8 = npt.NDArray[np.uint8]
Blocks = npt.NDArray[Any]
Release = Callable[[], None]
Make = Callable[[F32Array, Blocks], None]

_GROUPS = np.arange(8, dtype=np.uint8)[:, None]
_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _as_stored(name: str, layout: Layout, make: Make | None, *fields: tuple[Any, ...]) -> Format:
    """A format of 32 elements a block, whose fields d, q and, in some, m are what the layout has."""

    def unpack(blocks: Blocks, release: Release) -> Weight:
        n, groups = blocks.shape
        minimum = blocks["m"] if "m" in (blocks.dtype.names or ()) else None
        return Weight(layout, (n, groups * 32), blocks["q"], blocks["d"], minimum, release)

    return Format(name, 32, np.dtype([*fields]), unpack, make)


def _q4_k(blocks: Blocks, release: Release) -> Weight:
    n, count = blocks.shape
    q = nibbles(k_nibbles(blocks["q"])).reshape(n, count * 8, 16)
    values = np.concatenate([q, k_steps(blocks)], axis=-1)
    return Weight(Layout.K4, (n, count * 256), values, blocks["d"], -blocks["dmin"], release)


def _q5_k(blocks: Blocks, release: Release) -> Weight:
    n, count = blocks.shape
    fifth = np.packbits(blocks["qh"][:, :, None, :] >> _GROUPS & np.uint8(1), axis=-1, bitorder="little")
    q = np.concatenate([fifth, nibbles(k_nibbles(blocks["q"]))], axis=-1).reshape(n, count * 8, 20)
    values = np.concatenate([q, k_steps(blocks)], axis=-1)
    return Weight(Layout.K5, (n, count * 256), values, blocks["d"], -blocks["dmin"], release)


def _q6_k(blocks: Blocks, release: Release) -> Weight:
    """Each half of 128 has 64 bytes ql of low nibbles (elements 0-63 low, 64-127 high) and 32 bytes qh of
    two high bits for elements j, j + 32, j + 64, j + 96."""
    n, count = blocks.shape
    ql = blocks["ql"].reshape(n, count, 2, 64)
    low = np.concatenate([ql & np.uint8(15), ql >> np.uint8(4)], axis=3).reshape(n, count * 16, 16)
    high = (blocks["qh"].reshape(n, count, 2, 1, 32) >> _SHIFTS & np.uint8(3)).reshape(n, count * 16, 4, 4)
    parts = low[..., :8] | low[..., 8:] << np.uint8(4), np.bitwise_or.reduce(high << _SHIFTS, axis=2)
    q = np.concatenate(parts, axis=-1).reshape(n, count * 8, 24)
    steps = blocks["scales"].view(np.uint8).reshape(n, count * 8, 2)
    values = np.concatenate([q, steps], axis=-1)
    return Weight(Layout.K6, (n, count * 256), values, blocks["d"], release=release)


def k_steps(blocks: Blocks) -> U8:
    """s and m [N, K / 32, 2] of Q4_K and Q5_K, of six bits each.

    The 12 bytes hold eight of each: s and m of groups 0-3 in the low 6 bits of bytes 0-3 and 4-7;
    of groups 4-7 the low nibbles and the high ones of bytes 8-11, with two more bits atop bytes
    0-3 and 4-7. Source: ggml-quants.c, get_scale_min_k4.
    """
    n, count = blocks.shape
    first, second, third = np.split(blocks["scales"], 3, axis=-1)
    six, four, top = np.uint8(63), np.uint8(15), np.uint8(6)
    s = [first & six, third & four | first >> top << np.uint8(4)]
    m = [second & six, third >> np.uint8(4) | second >> top << np.uint8(4)]
    steps = np.stack([np.concatenate(s, axis=-1), np.concatenate(m, axis=-1)], axis=-1)
    return steps.reshape(n, count * 8, 2)


def k_nibbles(q: Blocks) -> U8:
    """[N, B, 128] bytes of Q4_K or Q5_K -> [N, B, 8, 32]: of each 32, the low nibbles, then the high."""
    chunks = q.reshape(*q.shape[:2], 4, 1, 32)
    both = np.concatenate([chunks & np.uint8(15), chunks >> np.uint8(4)], axis=3)
    return both.reshape(*q.shape[:2], 8, 32)


D, M = ("d", "<f2"), ("m", "<f2")
_K = (D, ("dmin", "<f2"), ("scales", "u1", (12,)))
FORMATS = (
    _as_stored("Q4_0", Layout.U4, ggml_blocks.q4_0, D, ("q", "u1", (16,))),
    _as_stored("Q4_1", Layout.U4, ggml_blocks.q4_1, D, M, ("q", "u1", (16,))),
    _as_stored("Q5_0", Layout.U5, ggml_blocks.q5_0, D, ("q", "u1", (20,))),
    _as_stored("Q5_1", Layout.U5, None, D, M, ("q", "u1", (20,))),
    _as_stored("Q8_0", Layout.S8, ggml_blocks.q8_0, D, ("q", "i1", (32,))),
    Format("Q4_K", 256, np.dtype([*_K, ("q", "u1", (128,))]), _q4_k, ggml_blocks.q4_k),
    Format("Q5_K", 256, np.dtype([*_K, ("qh", "u1", (32,)), ("q", "u1", (128,))]), _q5_k),
    Format(
        "Q6_K",
        256,
        np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), D]),
        _q6_k,
        ggml_blocks.q6_k,
    ),
)
