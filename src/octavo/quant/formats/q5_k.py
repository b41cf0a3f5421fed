"""Q5_K: 256 five-bit numbers in 8 groups; w = d s q - dmin m. Source: ggml-common.h, block_q5_K.

Four low bits lie as in Q4_K; bit g of qh[j] is the fifth of element j of group g. Reordered to the U5 layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import Layout, Weight
from octavo.quant.bits import k_nibbles, k_scales, packed
from octavo.quant.registry import Format

_BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("q", "u1", (128,))]
)
_GROUPS = np.arange(8, dtype=np.uint8)[:, None]


def _unpack(blocks: npt.NDArray[Any], release: Callable[[], None]) -> Weight:
    n, count = blocks.shape
    fifth = np.packbits(blocks["qh"][:, :, None, :] >> _GROUPS & np.uint8(1), axis=-1, bitorder="little")
    q = np.concatenate([fifth, packed(k_nibbles(blocks["q"]))], axis=-1).reshape(n, count * 8, 20)
    scale, minimum = k_scales(blocks)
    return Weight(Layout.U5, (n, count * 256), q, scale, minimum, release)


FORMAT = Format("Q5_K", 256, _BLOCK, _unpack)
