"""Q5_K: 256 five-bit numbers in 8 groups; w = d s q - dmin m. Source: ggml-common.h, block_q5_K.

Four low bits lie as in Q4_K; bit g of qh[j] is the fifth of element j of group g. S8 with a minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.bits import k_nibbles, k_scales
from octavo.quant.registry import Format

_BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("q", "u1", (128,))]
)
_GROUPS = np.arange(8, dtype=np.uint8)[:, None]


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, count = blocks.shape
    fifth = (blocks["qh"][:, :, None, :] >> _GROUPS & np.uint8(1)) << np.uint8(4)
    q = (k_nibbles(blocks["q"]) | fifth).view(np.int8).reshape(n, count * 8, 32)
    scale, minimum = k_scales(blocks)
    return Weight(Layout.S8, (n, count * 256), q, scale, minimum, release)


FORMAT = Format("Q5_K", 256, _BLOCK, _unpack)
