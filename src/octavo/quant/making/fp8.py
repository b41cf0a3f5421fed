"""fp8: E4M3 numbers with one scale a row, the largest at 448 (vLLM's fp8 while it loads)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from octavo.kernels.outline import Outline
from octavo.kernels.weight import F32Array, Layout, Weight
from octavo.quant.on_load import Method

_MOST = np.float32(448)


def _make(w: F32Array) -> Weight:
    scale = np.abs(w).max(axis=1, keepdims=True) / _MOST
    shares = np.divide(w, scale, out=np.zeros_like(w), where=scale > 0)
    numbers = np.clip(shares, -_MOST, _MOST).astype(ml_dtypes.float8_e4m3fn)  # beyond 448 it would be NaN
    return Weight(Layout.F8, w.shape, numbers, scale)


METHOD = Method(("fp8",), 1, _make, lambda shape: Outline.coded(Layout.F8, shape, 1))
