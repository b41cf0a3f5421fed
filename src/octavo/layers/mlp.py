"""Feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.kernels.ops import Activation, Ops, Tensor
from octavo.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate x) * (up x)) + residual; gate_up is one gated weight (SwiGLU, GeGLU)."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor) -> Tensor:
        return self.down(ops, self.gate_up(ops, x, self.activation), residual=residual)
