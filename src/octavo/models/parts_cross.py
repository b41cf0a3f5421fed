"""What encoder-decoder families share (Vaswani et al. 2017): both stacks, the model, attention's weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.kernels.ops import AttentionSpec, Inputs, KVCache, KVSpec, Ops, Sight, Tensor
from octavo.models.layers import (
    MLP,
    Attention,
    Block,
    DecoderStack,
    Embedding,
    Linear,
    Norm,
    heads_in,
    heads_out,
    wanted,
)
from octavo.models.loader import Loader
from octavo.models.parts import kv_spec


@dataclass(frozen=True, slots=True, eq=False)
class CrossAttention:
    """out(attention(q x over the encoder's keys and values)) + residual.

    Attributes:
        index: which layer of the KV cache is ours, in the encoder's pages as in the decoder's.
        kv: one stacked projection of the encoder's output, rows in the order k, v.
    """

    index: int
    q: Linear
    kv: Linear
    out: Linear
    spec: AttentionSpec

    def write(self, ops: Ops, inputs: Inputs, kv: KVCache, encoded: Tensor) -> None:
        """Store keys and values of an encoder's output, once for the whole request."""
        ops.append(inputs, self.kv(ops, encoded), kv.layer(self.index), self.spec)

    def __call__(
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, residual: Tensor | None = None,
        ends: bool = False,
    ) -> Tensor:  # fmt: skip
        y = wanted(ops, inputs, ops.attention(inputs, self.q(ops, x), kv.layer(self.index), self.spec), ends)
        return self.out(ops, y, residual=residual)


@dataclass(frozen=True, slots=True)
class CrossLayer:
    """Self-attention, cross attention, mlp; each x + f(norm x), or norm(x + f(x)) where norms come last."""

    attention_norm: Norm
    attention: Attention
    cross_norm: Norm
    cross: CrossAttention
    mlp_norm: Norm
    mlp: MLP
    norm_first: bool

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, ends: bool = False) -> Tensor:
        x = self._add(ops, x, self.attention_norm, lambda h, r: self.attention(ops, inputs, kv, h, r))
        x = self._add(
            ops, x, self.cross_norm,
            lambda h, r: self.cross(ops, inputs, kv, h, wanted(ops, inputs, r, ends), ends),
        )  # fmt: skip
        return self._add(ops, x, self.mlp_norm, lambda h, r: self.mlp(ops, h, r))

    def _add(self, ops: Ops, x: Tensor, norm: Norm, sublayer: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return sublayer(norm(ops, x), x) if self.norm_first else norm(ops, sublayer(x, x))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EncoderDecoderStack(DecoderStack):
    """A decoder, and the encoder whose output its layers read. first() and rest() cut the decoder alone.

    The encoder's own keys and values need no pages of their own: they lie where cross attention's will, and
    are gone when these are written.

    Attributes:
        source: the encoder's embedding.
        encoder_norm: after the encoder's last layer; None: none there (BART).
    """

    layers: Sequence[CrossLayer]
    source: Embedding
    encoder: Sequence[Block]
    encoder_norm: Norm | None

    def encode(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        """The encoder's output [T, hidden]; every decoder layer's cross keys and values are written."""
        x = self.source(ops, inputs)
        for block in self.encoder:
            x = block(ops, inputs, kv, x)
        if self.encoder_norm is not None:
            x = self.encoder_norm(ops, x)
        for layer in self.layers:
            layer.cross.write(ops, inputs, kv, x)
        return x


@dataclass(frozen=True, slots=True, eq=False)
class EncoderDecoderModel:
    """An encoder-decoder model (models.registry.EncoderDecoder).

    Attributes:
        max_position: of the decoder. max_source: tokens of an encoder's input.
    """

    stack: EncoderDecoderStack
    max_position: int
    max_source: int

    @property
    def vocab_size(self) -> int:
        return self.stack.head.weight.shape[0]

    def kv_specs(self, dtype: str) -> Sequence[KVSpec]:
        """Of the decoder's layers, in whose shape an encoder's pages are written too; one more where the
        encoder's own keys and values are of another shape."""
        specs = [kv_spec(layer.attention.spec, dtype) for layer in self.stack.layers]
        own = kv_spec(self.stack.encoder[0].attention.spec, dtype)
        return specs if own == specs[0] else [*specs, own]

    def encode(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        return self.stack.encode(ops, inputs, kv)

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache, taps: Collection[int] = ()) -> Tensor:
        return self.stack(ops, inputs, kv, taps)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionLoader:
    """Attention of heads heads, whose projections are called as names says.

    Attributes:
        names: "q", "k", "v", "out" -> a projection's name within its module.
        hidden: width of the model; scale: of q . k.
    """

    load: Loader
    names: Mapping[str, str]
    hidden: int
    heads: int
    head_dim: int
    scale: float
    bias: bool

    def self_attention(self, name: str, index: int, **spec: Any) -> Attention:
        """Of the module called name, in layer index of the KV cache; spec: AttentionSpec's fields."""
        qkv, out = self._stacked(name, "qkv"), self._out(name)
        return Attention(index=index, qkv=qkv, out=out, spec=replace(self._spec, **spec), rotary=None)

    def cross_attention(self, name: str, index: int) -> CrossAttention:
        return CrossAttention(
            index=index,
            q=self._stacked(name, "q"),
            kv=self._stacked(name, "kv"),
            out=self._out(name),
            spec=replace(self._spec, sight=Sight.CROSS),
        )

    def _stacked(self, name: str, sides: str) -> Linear:
        parts = [(f"{name}.{self.names[side]}", self._width, None) for side in sides]
        return self.load.stacked(parts, self.hidden, heads_out(self.head_dim), self.bias)

    def _out(self, name: str) -> Linear:
        shape = (self.hidden, self._width)
        return self.load.linear(f"{name}.{self.names['out']}", shape, heads_in(self.head_dim), self.bias)

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    @property
    def _spec(self) -> AttentionSpec:
        return AttentionSpec(self.heads, self.heads, self.head_dim, self.head_dim, self.scale)
