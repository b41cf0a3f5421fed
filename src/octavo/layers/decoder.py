"""The pre-norm decoder block and the stack that most families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kernels.ops import Inputs, KVCache, Ops, PackedWeight, Tensor
from octavo.layers.attention import Attention
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import Norm


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """x + attention(norm x), then x + mlp(norm x)."""

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: GatedMLP

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor) -> Tensor:
        x = self.attention(ops, inputs, kv, self.attention_norm(ops, x), residual=x)
        return self.mlp(ops, self.mlp_norm(ops, x), residual=x)


@dataclass(frozen=True, slots=True, eq=False)
class DecoderStack:
    """Embedding, layers, final norm and head: token ids in, logits [R, vocab] out."""

    table: PackedWeight
    layers: Sequence[DecoderLayer]
    norm: Norm
    head: PackedWeight
    embed_scale: float = 1.0
    logit_softcap: float | None = None

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        x = ops.embed(inputs, self.table, self.embed_scale)
        for layer in self.layers:
            x = layer(ops, inputs, kv, x)
        x = self.norm(ops, ops.gather_rows(inputs, x))
        return ops.linear(x, self.head, softcap=self.logit_softcap)
