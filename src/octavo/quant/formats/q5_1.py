"""Q5_1: 32 five-bit numbers, an f16 scale and an f16 minimum; w = d q + m. Source: ggml-common.h, block_q5_1.

The numbers lie as in Q5_0: the U5 layout itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.registry import Format

_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", (20,))])


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, groups = blocks.shape
    return Weight(Layout.U5, (n, groups * 32), blocks["q"], blocks["d"], blocks["m"], release)


FORMAT = Format("Q5_1", 32, _BLOCK, _unpack)
