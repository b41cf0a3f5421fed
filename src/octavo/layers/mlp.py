"""Feed-forward layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.kernels.ops import Activation, Ops, Tensor
from octavo.layers.linear import Linear


class MLP(Protocol):
    """x [T, hidden] -> [T, hidden], added to the residual where there is one."""

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(activation(gate x) * (up x)) + residual; gate_up is one gated weight (SwiGLU, GeGLU)."""

    gate_up: Linear
    down: Linear
    activation: Activation

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.down(ops, self.gate_up(ops, x, self.activation), residual=residual)


@dataclass(frozen=True, slots=True)
class PlainMLP:
    """down(activation(up x)) + residual, as in the first transformer."""

    up: Linear
    down: Linear
    activation: Activation

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.down(ops, self.up(ops, x, self.activation), residual=residual)
