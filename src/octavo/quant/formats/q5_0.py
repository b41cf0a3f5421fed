"""Q5_0: 32 five-bit numbers and one f16 scale; w = d (q - 16). Source: ggml-common.h, block_q5_0.

Bit j of the first four bytes is element j's fifth, then four low bits lie as in Q4_0: the U5 layout itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.registry import Format

_BLOCK = np.dtype([("d", "<f2"), ("q", "u1", (20,))])


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, groups = blocks.shape
    return Weight(Layout.U5, (n, groups * 32), blocks["q"], blocks["d"], release=release)


FORMAT = Format("Q5_0", 32, _BLOCK, _unpack)
