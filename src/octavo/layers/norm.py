"""Normalization layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.kernels.ops import F32, Ops, Tensor


class Norm(Protocol):
    def __call__(self, ops: Ops, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class RMSNorm:
    """gain [width]; Gemma's 1 + w is folded into gain at load."""

    gain: F32
    eps: float

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.gain, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    gain: F32
    bias: F32 | None
    eps: float

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.gain, self.bias, self.eps)
