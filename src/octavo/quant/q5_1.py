"""Q5_1: 32 five-bit numbers, an f16 scale and an f16 minimum; w = d q + m. Source: ggml-common.h, block_q5_1.

Four low bits lie as in Q4_1; bit j of qh is element j's fifth. It becomes S8 with a minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.bits import fifth_bits, nibbles
from octavo.quant.registry import Format

_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("q", "u1", (16,))])


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, groups = blocks.shape
    q = (nibbles(blocks["q"]) | fifth_bits(blocks["qh"])).view(np.int8)
    return Weight(Layout.S8, (n, groups * 32), q, blocks["d"], blocks["m"], release)


FORMAT = Format("Q5_1", 32, _BLOCK, _unpack)
