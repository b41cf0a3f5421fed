"""int8: one byte a number, symmetric, with an f16 scale for each 128 columns (64 or 32 where rows need it).

One scale a row (eetq) would be as large as the row's largest number asks: groups lose less, for an eighth of
a bit more.
"""

from __future__ import annotations

import math

import numpy as np

from octavo.kernels.outline import Outline
from octavo.kernels.weight import BLOCK, F32Array, Layout, Weight
from octavo.quant.on_load import Method

_GROUP, _MOST = 128, 127


def _groups(k: int) -> int:
    """How many a row of k columns has."""
    return k // math.gcd(k, _GROUP)


def _make(w: F32Array) -> Weight:
    n, k = w.shape
    groups = w.reshape(n, _groups(k), -1)
    with np.errstate(over="ignore"):
        scale = (np.abs(groups).max(axis=2) / _MOST).astype(np.float16)
    step = scale.astype(np.float32)
    whole = np.where((step > 0) & np.isfinite(step), step, 1)
    q = np.clip(np.rint(groups / whole[:, :, None]), -_MOST, _MOST).astype(np.int8)
    return Weight(Layout.S8, (n, k), q.reshape(n, k // BLOCK, BLOCK), scale)


METHOD = Method(
    ("int8",), BLOCK, _make, lambda shape: Outline.coded(Layout.S8, shape, _groups(shape[1]), wide=False)
)
