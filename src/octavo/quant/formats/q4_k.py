"""Q4_K: 256 four-bit numbers in 8 groups; w = d s q - dmin m. Source: ggml-common.h, block_q4_K.

d s and dmin m are taken as f32, so nothing is rounded; nibbles are reordered to the U4 layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.bits import k_nibbles, k_scales, packed
from octavo.quant.registry import Format

_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("q", "u1", (128,))])


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, count = blocks.shape
    q = packed(k_nibbles(blocks["q"])).reshape(n, count * 8, 16)
    scale, minimum = k_scales(blocks)
    return Weight(Layout.U4, (n, count * 256), q, scale, minimum, release)


FORMAT = Format("Q4_K", 256, _BLOCK, _unpack)
