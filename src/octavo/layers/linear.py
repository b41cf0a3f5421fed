"""A projection: packed weight and bias."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.kernels.ops import F32, Activation, Ops, PackedWeight, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    weight: PackedWeight
    bias: F32 | None = None

    def __call__(
        self,
        ops: Ops,
        x: Tensor,
        activation: Activation = Activation.NONE,
        residual: Tensor | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        return ops.linear(x, self.weight, self.bias, activation, residual, softcap=softcap)
