"""Pieces that encoder-decoder families share: the model, and attention with q, k and v apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.kernels.ops import AttentionSpec, Inputs, KVCache, KVSpec, Ops, Sight, Tensor
from octavo.layers.attention import Attention
from octavo.layers.encoder_decoder import CrossAttention, EncoderDecoderStack
from octavo.layers.linear import Linear, heads_in, heads_out
from octavo.models.loader import Loader


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
