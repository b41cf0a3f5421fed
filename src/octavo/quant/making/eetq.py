"""eetq: one byte a number and one scale a row of W, symmetric (EETQ's format, LLM.int8's weights)."""

from __future__ import annotations

import numpy as np

from octavo.kernels.outline import Outline
from octavo.kernels.weight import BLOCK, F32Array, Layout, Weight
from octavo.quant.on_load import Method

_MOST = np.float32(127)


def _make(w: F32Array) -> Weight:
    n, k = w.shape
    top = np.abs(w).max(axis=1, keepdims=True)
    q = np.rint(w * (_MOST / np.where(top > 0, top, 1))).astype(np.int8)
    return Weight(Layout.S8, (n, k), q.reshape(n, k // BLOCK, BLOCK), top / _MOST)


METHOD = Method(("eetq",), BLOCK, _make, lambda shape: Outline.coded(Layout.S8, shape, 1))
