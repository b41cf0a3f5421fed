"""fp8: E4M3 with one scale a row, as compressed-tensors stores what vLLM calls FP8_DYNAMIC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.kernels.weight import F32Array
from octavo.quant.making.fp8 import METHOD
from octavo.quant.schemes.compressed_tensors import fp8_settings
from octavo.quant.writer import Choice, Limits, Met, Tensors


class Fp8:
    """A Writer."""

    limits = Limits((8,), columns=1)

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        return fp8_settings(left_out)

    def write(self, stem: str, w: F32Array, choice: Choice, met: Met | None) -> Tensors:
        made = METHOD.make(w)
        assert made.scale is not None, "the method gives each row one"
        return {f"{stem}.weight": made.values, f"{stem}.weight_scale": made.scale}


WRITER = Fp8()
