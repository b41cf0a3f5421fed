"""nf4: quantiles of a normal distribution in blocks of 64, as bitsandbytes stores them (QLoRA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.kernels.coded import NF4_GROUP
from octavo.kernels.weight import F32Array
from octavo.quant.making.nf4 import METHOD
from octavo.quant.schemes.bitsandbytes import settings_of, stored_nf4
from octavo.quant.writer import Choice, Limits, Met, Tensors


class Nf4:
    """A Writer."""

    limits = Limits((4,), columns=NF4_GROUP, obeys=("nested",))

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        return settings_of(choice, left_out)

    def write(self, stem: str, w: F32Array, choice: Choice, met: Met | None) -> Tensors:
        return stored_nf4(stem, METHOD.make(w), choice.nested)


WRITER = Nf4()
