"""Q6_K: 256 six-bit numbers in 16 groups; w = d s (q - 32). Source: ggml-common.h, block_q6_K.

Each half of 128 has 64 bytes ql of low nibbles (elements 0-63 low, 64-127 high) and 32 bytes qh of
two high bits for elements j, j + 32, j + 64, j + 96. It becomes S8 with an f32 scale per 16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.registry import Format

_BLOCK = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])
_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, count = blocks.shape
    ql = blocks["ql"].reshape(n, count, 2, 64)
    low = np.concatenate([ql & np.uint8(15), ql >> np.uint8(4)], axis=3).reshape(n, count, 2, 4, 32)
    high = blocks["qh"].reshape(n, count, 2, 1, 32) >> _SHIFTS & np.uint8(3)
    q = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
    scale = blocks["d"].astype(np.float32)[:, :, None] * blocks["scales"].astype(np.float32)
    return Weight(Layout.S8, (n, count * 256), q.reshape(n, count * 8, 32), scale.reshape(n, count * 16),
                  release=release)  # fmt: skip


FORMAT = Format("Q6_K", 256, _BLOCK, _unpack)
