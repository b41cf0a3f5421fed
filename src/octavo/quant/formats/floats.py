"""Floats as they are: F32, F16, and BF16, the upper half of an F32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from octavo.kernels.weight import Array, F32Array, Weight
from octavo.quant.registry import Format


def _cast(numbers: F32Array, out: Array) -> None:
    out[:] = numbers[..., 0].astype(out.dtype)


FORMATS = (
    Format("F32", 1, np.dtype("<f4"), Weight.dense, _cast),
    Format("F16", 1, np.dtype("<f2"), Weight.dense, _cast),
    Format("BF16", 1, np.dtype(ml_dtypes.bfloat16), Weight.dense, _cast),
)
