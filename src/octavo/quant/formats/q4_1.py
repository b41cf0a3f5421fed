"""Q4_1: 32 four-bit numbers, an f16 scale and an f16 minimum; w = d q + m. Source: ggml-common.h, block_q4_1.

Low nibbles are elements 0 to 15, high ones 16 to 31: as the U4 layout has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.registry import Format

_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", (16,))])


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, groups = blocks.shape
    return Weight(Layout.U4, (n, groups * 32), blocks["q"], blocks["d"], blocks["m"], release=release)


FORMAT = Format("Q4_1", 32, _BLOCK, _unpack)
