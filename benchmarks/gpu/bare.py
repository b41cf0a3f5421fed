"""A stand-in for ml_dtypes on a machine that has torch and Triton and little else.

Octavo always brings ml_dtypes; what this script checks needs it nowhere: weights of FP8 travel as bytes, and
bfloat16 is torch's. So its two types stand here for bytes, which nobody converts.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
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


def lacks(packages: Iterable[str]) -> str | None:
    """Which of these are not there; None: all are. A stand-in is not."""

    def there(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except (ModuleNotFoundError, ValueError):
            return False

    missing = [each for each in packages if not there(each)]
    return f"{', '.join(missing)} not installed" if missing else None


def environment() -> dict[str, str]:
    """This process's, in which another one finds Octavo's source tree and this package."""
    root = Path(__file__).resolve().parents[2]
    paths = [str(root / "src"), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
