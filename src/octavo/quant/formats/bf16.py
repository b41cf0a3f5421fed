"""BF16: the upper half of an F32, as brain floats are."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from octavo.kernels.weight import Weight
from octavo.quant.registry import Format

FORMAT = Format("BF16", 1, np.dtype(ml_dtypes.bfloat16), Weight.dense)
