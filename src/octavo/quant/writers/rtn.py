"""rtn: integers rounded to nearest, with scales of groups, stored as GPTQ's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.kernels.weight import F32Array
from octavo.quant.grid import nearest
from octavo.quant.schemes.gptq import LOWEST_ZERO, STORED_BITS, settings_of, stored
from octavo.quant.writer import Choice, Limits, Met, Tensors


class Nearest:
    """A Writer that looks at no activations."""

    limits = Limits((4, 8, 3, 2), (128, 64, 32), rows=STORED_BITS, zeros=True)

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        return settings_of(choice, act_order=False)

    def write(self, stem: str, w: F32Array, choice: Choice, met: Met | None) -> Tensors:
        return stored(stem, nearest(stem, w, choice, LOWEST_ZERO), choice.bits)


WRITER = Nearest()
