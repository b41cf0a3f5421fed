"""int4: four bits a number, rounded to nearest, with an f16 scale and a zero point for each 32 columns."""

from __future__ import annotations

import numpy as np

from octavo.kernels.outline import Outline
from octavo.kernels.weight import BLOCK, F32Array, Layout, Weight
from octavo.quant.on_load import Method
from octavo.quant.packing import nibbles

_MOST = 15


def _make(w: F32Array) -> Weight:
    """The range of a block, 0 included, in 15 steps."""
    n, k = w.shape
    blocks = w.reshape(n, k // BLOCK, BLOCK)
    low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
    with np.errstate(over="ignore"):
        scale = ((high - low) / _MOST).astype(np.float16)
    step = scale.astype(np.float32)
    whole = np.where((step > 0) & np.isfinite(step), step, 1)
    zero = np.clip(np.rint(-low / whole), 0, _MOST)
    q = np.clip(np.rint(blocks / whole[:, :, None]) + zero[:, :, None], 0, _MOST).astype(np.uint8)
    return Weight(Layout.U4, (n, k), nibbles(q), scale, zero=zero.astype(np.uint8))


METHOD = Method(
    ("int4",), BLOCK, _make, lambda s: Outline.coded(Layout.U4, s, s[1] // BLOCK, wide=False, zeros=True)
)
