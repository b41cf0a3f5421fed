"""A stand-in for ml_dtypes on a machine that has torch and Triton and little else.

Octavo always brings ml_dtypes; what this script checks needs it nowhere: weights of FP8 travel as bytes, and
bfloat16 is torch's. So its two types stand here for bytes, which nobody converts.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import numpy as np


def stand_in() -> None:
    """Before octavo is imported: what is missing is made."""
    try:
        importlib.import_module("ml_dtypes")
    except ModuleNotFoundError:
        pass
    else:
        return
    made = ModuleType("ml_dtypes", "Bytes, see gpu/bare.py.")
    vars(made).update(bfloat16=np.dtype("V2"), float8_e4m3fn=np.dtype("V1"))
    sys.modules["ml_dtypes"] = made
