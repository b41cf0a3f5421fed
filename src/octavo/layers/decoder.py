"""The decoder blocks, and the stack that all decoder-only families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.kernels.ops import AttentionSpec, Inputs, KVCache, Ops, PackedWeight, Tensor
from octavo.layers.linear import Linear
from octavo.layers.mlp import MLP
from octavo.layers.norm import Norm


class SelfAttention(Protocol):
    """What a block needs of an attention layer; spec says what its pages hold."""

    @property
    def spec(self) -> AttentionSpec: ...

    def __call__(
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, residual: Tensor | None = None
    ) -> Tensor: ...


class Block(Protocol):
    """x [T, hidden] -> [T, hidden]."""

    @property
    def attention(self) -> SelfAttention: ...

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """x + attention(norm x), then x + mlp(norm x).

    Attributes:
        attention_norm, mlp_norm: before the sublayer; None: none there (OLMo 2).
        attention_post_norm, mlp_post_norm: on a sublayer's output before it is added (Gemma 2, OLMo 2).
    """

    attention_norm: Norm | None
    attention: SelfAttention
    mlp_norm: Norm | None
    mlp: MLP
    attention_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor) -> Tensor:
        h = x if self.attention_norm is None else self.attention_norm(ops, x)
        if self.attention_post_norm is None:
            x = self.attention(ops, inputs, kv, h, residual=x)
        else:
            x = ops.add(x, self.attention_post_norm(ops, self.attention(ops, inputs, kv, h)))
        h = x if self.mlp_norm is None else self.mlp_norm(ops, x)
        if self.mlp_post_norm is None:
            return self.mlp(ops, h, residual=x)
        return ops.add(x, self.mlp_post_norm(ops, self.mlp(ops, h)))


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """x + attention(norm x) + mlp(norm' x) (GPT-J's block). mlp_norm None: both read the same norm."""

    attention_norm: Norm
    attention: SelfAttention
    mlp_norm: Norm | None
    mlp: MLP

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor) -> Tensor:
        h = self.attention_norm(ops, x)
        y = self.attention(ops, inputs, kv, h, residual=x)
        return self.mlp(ops, h if self.mlp_norm is None else self.mlp_norm(ops, x), residual=y)


@dataclass(frozen=True, slots=True)
class PostNormLayer:
    """norm(x + attention(x)), then norm(x + mlp(x)), as in the first transformer (OPT-350M)."""

    attention_norm: Norm
    attention: SelfAttention
    mlp_norm: Norm
    mlp: MLP

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor) -> Tensor:
        x = self.attention_norm(ops, self.attention(ops, inputs, kv, x, residual=x))
        return self.mlp_norm(ops, self.mlp(ops, x, residual=x))


@dataclass(frozen=True, slots=True, eq=False)
class DecoderStack:
    """Embedding, layers, final norm and head: token ids in, logits [R, vocab] out.

    Attributes:
        positions: a learned table of positions, read at position + position_offset; None: none.
        embed_norm: on the embedding (BLOOM). norm: before the head; None: none (OPT-350M).
        project_in, project_out: between the width of words and that of layers (OPT-350M).
    """

    table: PackedWeight
    layers: Sequence[Block]
    norm: Norm | None
    head: Linear
    embed_scale: float = 1.0
    logit_softcap: float | None = None
    positions: PackedWeight | None = None
    position_offset: int = 0
    embed_norm: Norm | None = None
    project_in: Linear | None = None
    project_out: Linear | None = None

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        return self.head(ops, self.hidden(ops, inputs, kv), softcap=self.logit_softcap)

    def hidden(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        """What the head reads: the last layer's output [R, width], normed."""
        x = self._embed(ops, inputs)
        for layer in self.layers:
            x = layer(ops, inputs, kv, x)
        x = ops.gather_rows(inputs, x)
        if self.norm is not None:
            x = self.norm(ops, x)
        return x if self.project_out is None else self.project_out(ops, x)

    def _embed(self, ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.embed(inputs, self.table, self.embed_scale)
        if self.project_in is not None:
            x = self.project_in(ops, x)
        if self.positions is not None:
            x = ops.embed_positions(inputs, x, self.positions, self.position_offset)
        return x if self.embed_norm is None else self.embed_norm(ops, x)
