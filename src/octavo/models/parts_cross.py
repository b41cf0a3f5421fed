"""What encoder-decoder families share (Vaswani et al. 2017): both stacks, the model, attention's weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.kernels.ops import (
    AttentionSpec,
    Inputs,
    KVCache,
    KVSpec,
    Ops,
    PackedWeight,
    Scaling,
    Sight,
    Tensor,
)
from octavo.models.layers import MLP, Attention, Block, Linear, Norm, cut, heads_in, heads_out, run_layers
from octavo.models.loader import Loader


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
        self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, residual: Tensor | None = None
    ) -> Tensor:
        y = ops.attention(inputs, self.q(ops, x), kv.layer(self.index), self.spec)
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

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor) -> Tensor:
        x = self._add(ops, x, self.attention_norm, lambda h, r: self.attention(ops, inputs, kv, h, r))
        x = self._add(ops, x, self.cross_norm, lambda h, r: self.cross(ops, inputs, kv, h, r))
        return self._add(ops, x, self.mlp_norm, lambda h, r: self.mlp(ops, h, r))

    def _add(self, ops: Ops, x: Tensor, norm: Norm, sublayer: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return sublayer(norm(ops, x), x) if self.norm_first else norm(ops, sublayer(x, x))


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """Token ids to rows: scale * table[id], plus a learned position (BART), normalized (BART)."""

    table: PackedWeight
    scale: float = 1.0
    positions: PackedWeight | None = None
    position_offset: int = 0
    norm: Norm | None = None

    def __call__(self, ops: Ops, inputs: Inputs) -> Tensor:
        x = ops.embed(inputs, self.table, self.scale)
        if self.positions is not None:
            x = ops.embed_positions(inputs, x, self.positions, self.position_offset)
        return x if self.norm is None else self.norm(ops, x)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderDecoderStack:
    """Both halves. The encoder's own keys and values need no pages of their own: they lie where cross
    attention's will, and are gone when these are written.

    Attributes:
        encoder_norm, decoder_norm: after the last layer; None: none there (BART).
        head_scale: factor of the logits (T5: hidden_size^-0.5 where the embedding is the head).
    """

    source: Embedding
    encoder: Sequence[Block]
    encoder_norm: Norm | None
    target: Embedding
    decoder: Sequence[CrossLayer]
    decoder_norm: Norm | None
    head: Linear
    head_scale: float = 1.0

    @property
    def width(self) -> int:
        """Of what the decoder's layers read and write."""
        return self.target.table.shape[1]

    def encode(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        """The encoder's output [T, hidden]; every decoder layer's cross keys and values are written."""
        x = self.source(ops, inputs)
        for layer in self.encoder:
            x = layer(ops, inputs, kv, x)
        if self.encoder_norm is not None:
            x = self.encoder_norm(ops, x)
        for decoder in self.decoder:
            decoder.cross.write(ops, inputs, kv, x)
        return x

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, taps: Collection[int] = ()) -> Tensor:
        """Logits [R, vocab] of the decoder's sampled rows. taps: of the decoder's layers (DecoderStack)."""
        x = self.first(ops, inputs, kv, len(self.decoder), taps)
        return self.rest(ops, inputs, kv, len(self.decoder), x)

    def first(self, ops: Ops, inputs: Inputs, kv: KVCache, count: int, taps: Collection[int] = ()) -> Tensor:
        """The decoder's embedding and first count layers: x [T, width]. The encoder is not cut."""
        layers = self.decoder[: cut(count, self.decoder)]
        return run_layers(layers, ops, inputs, kv, self.target(ops, inputs), taps)

    def rest(
        self, ops: Ops, inputs: Inputs, kv: KVCache, count: int, x: Tensor, taps: Collection[int] = ()
    ) -> Tensor:
        """Logits [R, vocab] by the decoder's layers after the first count."""
        x = run_layers(self.decoder[cut(count, self.decoder) :], ops, inputs, kv, x, taps, count)
        x = ops.gather_rows(inputs, x)
        if self.decoder_norm is not None:
            x = self.decoder_norm(ops, x)
        return self.head(ops, x, scaling=Scaling(self.head_scale))


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
        specs = [kv_spec(layer.attention.spec, dtype) for layer in self.stack.decoder]
        own = kv_spec(self.stack.encoder[0].attention.spec, dtype)
        return specs if own == specs[0] else [*specs, own]

    def encode(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        return self.stack.encode(ops, inputs, kv)

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache, taps: Collection[int] = ()) -> Tensor:
        return self.stack(ops, inputs, kv, taps)


def kv_spec(spec: AttentionSpec, dtype: str) -> KVSpec:
    return KVSpec(spec.num_kv_heads, spec.head_dim, spec.v_head_dim, dtype)


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
