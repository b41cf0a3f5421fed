"""Q8_0: 32 signed bytes and one f16 scale; w = d q. Source: ggml, ggml-common.h, block_q8_0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.registry import Format

_BLOCK = np.dtype([("d", "<f2"), ("q", "i1", (32,))])


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, groups = blocks.shape
    return Weight(Layout.S8, (n, groups * 32), blocks["q"], blocks["d"], release=release)


FORMAT = Format("Q8_0", 32, _BLOCK, _unpack)
