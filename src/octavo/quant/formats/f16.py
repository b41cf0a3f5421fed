"""F16: the numbers themselves."""

from __future__ import annotations

import numpy as np

from octavo.kernels.weight import Weight
from octavo.quant.registry import Format

FORMAT = Format("F16", 1, np.dtype("<f2"), Weight.dense)
