"""F32: the numbers themselves."""

from __future__ import annotations

import numpy as np

from octavo.kernels.weight import Weight
from octavo.quant.registry import Format

FORMAT = Format("F32", 1, np.dtype("<f4"), Weight.dense)
