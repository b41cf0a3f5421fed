"""Mixture of experts (Shazeer et al. 2017), with the shared experts of Qwen and DeepSeek."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kernels.ops import Activation, Experts, Ops, Routing, Tensor
from octavo.layers.linear import Linear
from octavo.layers.mlp import GatedMLP


@dataclass(frozen=True, slots=True, eq=False)
class MoE:
    """The chosen experts' sum, and beside it an expert that every token takes.

    Attributes:
        router: one row of logits a token, one for each expert.
        gate_up, down: each expert's two projections, gate_up gated.
        routing: how experts are chosen, where not by softmax alone.
        shared: computed for every token; shared_gate: a row whose sigmoid scales it (Qwen2-MoE).
    """

    router: Linear
    gate_up: Sequence[Linear]
    down: Sequence[Linear]
    top_k: int
    activation: Activation
    renormalize: bool
    routing: Routing | None = None
    shared: GatedMLP | None = None
    shared_gate: Linear | None = None

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor | None = None) -> Tensor:
        logits = self.router(ops, x)
        gate_up, down = [e.weight for e in self.gate_up], [e.weight for e in self.down]
        experts = Experts(gate_up, down, self.activation)
        y = ops.moe(x, logits, experts, self.top_k, self.renormalize, self.routing)
        if self.shared is not None and self.shared_gate is not None:
            y = ops.add(y, ops.gate_rows(self.shared(ops, x), self.shared_gate(ops, x)))
        elif self.shared is not None:
            y = self.shared(ops, x, residual=y)
        return y if residual is None else ops.add(residual, y)
