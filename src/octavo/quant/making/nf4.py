"""nf4: four bits a number, quantiles of a normal distribution, with a scale for each 64 columns (QLoRA).

What bitsandbytes makes: the largest |w| of a block, and of each number over it the nearest code. Source:
Dettmers et al. 2023, section 3.
"""

from __future__ import annotations

import numpy as np

from octavo.kernels.coded import NF4_CODE, NF4_GROUP
from octavo.kernels.outline import Outline
from octavo.kernels.weight import F32Array, Layout, Weight
from octavo.quant.on_load import Method

_BORDERS = (NF4_CODE[1:] + NF4_CODE[:-1]) / 2


def _make(w: F32Array) -> Weight:
    n, k = w.shape
    blocks = w.reshape(n, k // NF4_GROUP, NF4_GROUP)
    scale = np.abs(blocks).max(axis=2)
    shares = blocks / np.where(scale > 0, scale, 1)[:, :, None]
    codes = np.searchsorted(_BORDERS, shares).astype(np.uint8).reshape(n, k)
    packed = codes[:, ::2] << np.uint8(4) | codes[:, 1::2]
    return Weight(Layout.NF4, (n, k), packed, scale)


METHOD = Method(
    ("nf4", "bitsandbytes-nf4"),
    NF4_GROUP,
    _make,
    lambda shape: Outline.coded(Layout.NF4, shape, shape[1] // NF4_GROUP),
)
