"""GGML's blocks of codes: four bits that name one of 16 small integers. They become S8, of eight bits.

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

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_HIGH = np.arange(0, 16, 2, dtype=np.uint16)


def _numbers(q: Blocks, code: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """[..., 16] bytes -> [..., 32]."""
    return np.asarray(code[np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=-1)])


def _iq4_nl(blocks: Blocks, release: Release) -> Weight:
    n, groups = blocks.shape
    return Weight(Layout.S8, (n, groups * 32), _numbers(blocks["q"], _IQ4), blocks["d"], release=release)


def _iq4_xs(blocks: Blocks, release: Release) -> Weight:
    n, count = blocks.shape
    low = np.stack([blocks["scales_l"] & np.uint8(15), blocks["scales_l"] >> np.uint8(4)], axis=-1)
    high = (blocks["scales_h"][:, :, None] >> _HIGH & np.uint16(3)).astype(np.uint8)
    s = (low.reshape(n, count, 8) | high << np.uint8(4)).view(np.int8) - np.int8(32)
    scale = blocks["d"].astype(np.float32)[:, :, None] * s.astype(np.float32)
    q = _numbers(blocks["q"].reshape(n, count * 8, 16), _IQ4)
    return Weight(Layout.S8, (n, count * 256), q, scale.reshape(n, count * 8), release=release)


def _mxfp4(blocks: Blocks, release: Release) -> Weight:
    """Exponents below 2 make numbers below f32's normal range."""
    n, groups = blocks.shape
    e = blocks["e"].astype(np.uint32)
    tiny = np.uint32(0x00200000) << np.minimum(e, 1).astype(np.uint32)
    scale = np.where(e < 2, tiny, (np.maximum(e, 1) - 1) << np.uint32(23)).astype(np.uint32).view(np.float32)
    return Weight(Layout.S8, (n, groups * 32), _numbers(blocks["q"], _E2M1), scale, release=release)


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
