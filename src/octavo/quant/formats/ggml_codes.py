"""GGML's blocks of codes: four bits that name one of 16 small integers. IQ4 becomes C4, MXFP4 S8.

    IQ4_NL   d, 16 bytes q         w = d code[q]                low nibbles: elements 0 to 15; high: 16 to 31
    IQ4_XS   256 in 8 groups       w = d (s - 32) code[q]       s of 6 bits: four of scales_l, two of scales_h
    MXFP4    e, 16 bytes q         w = 2^(e - 128) e2m1[q]      e2m1 doubled, so that its numbers are whole

Source: ggml-common.h; OCP Microscaling Formats (MX) 1.0, sections 5.3 and 5.4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.formats.ggml import Blocks, D, Release
from octavo.quant.registry import Format

_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_HIGH = np.arange(0, 16, 2, dtype=np.uint16)


def _numbers(q: Blocks) -> npt.NDArray[np.int8]:
    """[..., 16] bytes -> [..., 32]."""
    return np.asarray(_E2M1[np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=-1)])


def _iq4_nl(blocks: Blocks, release: Release) -> Weight:
    n, groups = blocks.shape
    values = np.concatenate([blocks["q"], np.ones((n, groups, 1), np.uint8)], axis=-1)
    return Weight(Layout.C4, (n, groups * 32), values, blocks["d"], release=release)


def _iq4_xs(blocks: Blocks, release: Release) -> Weight:
    n, count = blocks.shape
    low = np.stack([blocks["scales_l"] & np.uint8(15), blocks["scales_l"] >> np.uint8(4)], axis=-1)
    high = (blocks["scales_h"][:, :, None] >> _HIGH & np.uint16(3)).astype(np.uint8)
    s = (low.reshape(n, count, 8) | high << np.uint8(4)) - np.uint8(32)  # int8, as its bytes
    values = np.concatenate([blocks["q"].reshape(n, count * 8, 16), s.reshape(n, count * 8, 1)], axis=-1)
    return Weight(Layout.C4, (n, count * 256), values, blocks["d"], release=release)


def _mxfp4(blocks: Blocks, release: Release) -> Weight:
    """Exponents below 2 make numbers below f32's normal range."""
    n, groups = blocks.shape
    e = blocks["e"].astype(np.uint32)
    tiny = np.uint32(0x00200000) << np.minimum(e, 1).astype(np.uint32)
    scale = np.where(e < 2, tiny, (np.maximum(e, 1) - 1) << np.uint32(23)).astype(np.uint32).view(np.float32)
    return Weight(Layout.S8, (n, groups * 32), _numbers(blocks["q"]), scale, release=release)


FORMATS = (
    Format("IQ4_NL", 32, np.dtype([D, ("q", "u1", (16,))]), _iq4_nl),
    Format(
        "IQ4_XS",
        256,
        np.dtype([D, ("scales_h", "<u2"), ("scales_l", "u1", (4,)), ("q", "u1", (128,))]),
        _iq4_xs,
    ),
    Format("MXFP4", 32, np.dtype([("e", "u1"), ("q", "u1", (16,))]), _mxfp4),
)
