"""int8: one byte a number and one scale a row, as bitsandbytes stores LLM.int8's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.kernels.weight import F32Array
from octavo.quant.making.eetq import METHOD
from octavo.quant.schemes.bitsandbytes import settings_of
from octavo.quant.writer import Choice, Limits, Met, Tensors


class Int8:
    """A Writer."""

    limits = Limits((8,))

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        return settings_of(None, left_out)

    def write(self, stem: str, w: F32Array, choice: Choice, met: Met | None) -> Tensors:
        made = METHOD.make(w)
        return {
            f"{stem}.weight": made.values.reshape(w.shape),
            f"{stem}.SCB": np.abs(w).max(axis=1),
            f"{stem}.weight_format": np.zeros((), np.uint8),
        }


WRITER = Int8()
