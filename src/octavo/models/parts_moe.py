"""Mixture of experts (Shazeer et al. 2017), as Mixtral, Qwen and DeepSeek store it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import CheckpointError
from octavo.kernels.ops import Activation, Experts, Ops, Routing, Tensor
from octavo.models.config import DecoderConfig
from octavo.models.layers import COLUMNS, ROUTER, GatedMLP, Linear
from octavo.models.loader import Loader
from octavo.models.parts import gated_mlp

MOE_NAMES = {
    "model.layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
    "model.layers.{i}.mlp.experts.{e}.gate_proj": "blk.{i}.ffn_gate_exps",
    "model.layers.{i}.mlp.experts.{e}.up_proj": "blk.{i}.ffn_up_exps",
    "model.layers.{i}.mlp.experts.{e}.down_proj": "blk.{i}.ffn_down_exps",
    "model.layers.{i}.mlp.shared_expert.gate_proj": "blk.{i}.ffn_gate_shexp",
    "model.layers.{i}.mlp.shared_expert.up_proj": "blk.{i}.ffn_up_shexp",
    "model.layers.{i}.mlp.shared_expert.down_proj": "blk.{i}.ffn_down_shexp",
    "model.layers.{i}.mlp.shared_expert_gate": "blk.{i}.ffn_gate_inp_shexp",
}
"""transformers' names -> GGUF's, where all experts of a layer are one tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig(DecoderConfig):
    """A decoder some of whose layers are mixtures.

    Attributes:
        expert_size: an expert's inner width; intermediate_size is that of the other layers.
        renormalize: the chosen experts' shares sum to 1.
        shared_size: inner width of the expert that every token takes; 0: there is none.
        dense_layers: layers without experts.
    """

    num_experts: int
    top_k: int
    expert_size: int
    renormalize: bool
    shared_size: int = 0
    dense_layers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        DecoderConfig.__post_init__(self)
        check_experts(self.top_k, self.num_experts)


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


def check_experts(top_k: int, num_experts: int) -> None:
    """Raise CheckpointError unless a token can go to so many experts."""
    if not 1 <= top_k <= num_experts:
        raise CheckpointError(f"num_experts_per_tok must be 1 to the {num_experts} experts, not {top_k}")


def moe(
    c: MoEConfig,
    load: Loader,
    name: str,
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> MoE:
    """Router and experts of a module; with shared_size, a gated shared expert."""
    gate, up, down = projections
    inner, outer = (c.expert_size, c.hidden_size), (c.hidden_size, c.expert_size)
    experts = [f"{name}.experts.{e}" for e in range(c.num_experts)]
    shared: GatedMLP | None = None
    shared_gate: Linear | None = None
    if c.shared_size:
        shared = gated_mlp(c, load, f"{name}.shared_expert", c.shared_size)
        shared_gate = load.linear(f"{name}.shared_expert_gate", (1, c.hidden_size), ROUTER)
    return MoE(
        router=load.linear(f"{name}.gate", (c.num_experts, c.hidden_size), ROUTER),
        gate_up=[load.gated(f"{e}.{gate}", f"{e}.{up}", inner) for e in experts],
        down=[load.linear(f"{e}.{down}", outer, COLUMNS) for e in experts],
        top_k=c.top_k,
        activation=c.activation,
        renormalize=c.renormalize,
        shared=shared,
        shared_gate=shared_gate,
    )
