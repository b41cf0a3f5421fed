"""Q5_0: 32 five-bit numbers and one f16 scale; w = d (q - 16). Source: ggml-common.h, block_q5_0.

Four low bits lie as in Q4_0; bit j of qh is element j's fifth. q - 16 fits the S8 layout exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.bits import fifth_bits, nibbles
from octavo.quant.registry import Format

_BLOCK = np.dtype([("d", "<f2"), ("qh", "u1", (4,)), ("q", "u1", (16,))])


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, groups = blocks.shape
    q = (nibbles(blocks["q"]) | fifth_bits(blocks["qh"])).view(np.int8) - np.int8(16)
    return Weight(Layout.S8, (n, groups * 32), q, blocks["d"], release=release)


FORMAT = Format("Q5_0", 32, _BLOCK, _unpack)
