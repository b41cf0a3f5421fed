"""Pieces of the families beside Llama's line (GPT-2, GPT-NeoX, BLOOM, Falcon, OPT, StarCoder2, BART, T5,
Phi-3): fused projections, plain feed-forward layers, ALiBi, and blocks that have their norms elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.kernels.ops import F32, Activation, Inputs, KVCache, Ops, Rotary, Tensor
from octavo.models.config import DecoderConfig
from octavo.models.layers import (
    COLUMNS,
    MLP,
    ROWS,
    Attention,
    Block,
    DecoderStack,
    Embedding,
    Linear,
    Norm,
    SelfAttention,
    heads_out,
    wanted,
)
from octavo.models.loader import Loader, Order
from octavo.models.parts import DecoderModel, attention_spec, out_proj


@dataclass(frozen=True, slots=True)
class PlainMLP:
    """down(activation(up x)) + residual, as in the first transformer."""

    up: Linear
    down: Linear
    activation: Activation

    def __call__(self, ops: Ops, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.down(ops, self.up(ops, x, self.activation), residual=residual)


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """x + attention(norm x) + mlp(norm' x) (GPT-J's block). mlp_norm None: both read the same norm."""

    attention_norm: Norm
    attention: SelfAttention
    mlp_norm: Norm | None
    mlp: MLP

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, ends: bool = False) -> Tensor:
        h = self.attention_norm(ops, x)
        x = wanted(ops, inputs, x, ends)
        y = self.attention(ops, inputs, kv, h, residual=x, ends=ends)
        h = wanted(ops, inputs, h, ends) if self.mlp_norm is None else self.mlp_norm(ops, x)
        return self.mlp(ops, h, residual=y)


@dataclass(frozen=True, slots=True)
class PostNormLayer:
    """norm(x + attention(x)), then norm(x + mlp(x)), as in the first transformer (OPT-350M)."""

    attention_norm: Norm
    attention: SelfAttention
    mlp_norm: Norm
    mlp: MLP

    def __call__(self, ops: Ops, inputs: Inputs, kv: KVCache, x: Tensor, ends: bool = False) -> Tensor:
        rest = wanted(ops, inputs, x, ends)
        x = self.attention_norm(ops, self.attention(ops, inputs, kv, x, residual=rest, ends=ends))
        return self.mlp_norm(ops, self.mlp(ops, x, residual=x))


def fused_qkv(c: DecoderConfig, load: Loader, name: str, order: Order | None = None) -> Linear:
    """q, k and v from one matrix, whose rows order makes all q, all k, all v."""
    sizes = [heads * c.head_dim for heads in (c.num_heads, c.num_kv_heads, c.num_kv_heads)]
    return load.linear(name, (sum(sizes), c.hidden_size), heads_out(c.head_dim, *sizes), c.qkv_bias, order)


def ungroup(groups: int, sizes: tuple[int, int, int], head_dim: int) -> Order:
    """Rows of a fused qkv in the order all q, all k, all v, where each group holds sizes heads of each.

    GPT-NeoX and BLOOM: a group a head, sizes (1, 1, 1). Falcon 40B: a group a KV head.
    """
    rows = np.arange(groups * sum(sizes) * head_dim).reshape(groups, sum(sizes), head_dim)
    ends = np.cumsum(sizes)[:-1]
    return np.concatenate([side.reshape(-1) for side in np.split(rows, ends, axis=1)])


def attention_of(
    c: DecoderConfig, load: Loader, i: int, qkv: Linear, out: str, rotary: Rotary | None = None
) -> Attention:
    """Attention of layer i, whose q, k and v are one projection; out: the module that reads its heads."""
    return Attention(i, qkv, out_proj(c, load, out), attention_spec(c, i), rotary)


def plain_mlp(c: DecoderConfig, load: Loader, up: str, down: str, transposed: bool = False) -> PlainMLP:
    """Two projections with an activation between them."""
    hidden, width, bias = c.hidden_size, c.intermediate_size, c.mlp_bias
    return PlainMLP(
        load.linear(up, (width, hidden), ROWS, bias, transposed=transposed),
        load.linear(down, (hidden, width), COLUMNS, bias, transposed=transposed),
        c.activation,
    )


def plain_model(
    c: DecoderConfig,
    load: Loader,
    words: str,
    layers: Sequence[Block],
    final_norm: str,
    head: str = "lm_head",
    **embedding: Any,
) -> DecoderModel:
    """Embedding, layers, a layer norm and the head, whose modules are called words, final_norm and head.

    Args:
        embedding: other fields of Embedding.
    """
    table = load.table(words, (c.vocab_size, c.hidden_size))
    stack = DecoderStack(
        embedding=Embedding(table, **embedding),
        layers=layers,
        norm=load.layer_norm(final_norm, c.hidden_size, c.norm_eps),
        head=load.head(head, table, c.tie_word_embeddings),
    )
    return DecoderModel(stack, c.max_position)


def alibi_slopes(heads: int) -> F32:
    """ALiBi's slope of each head (Press et al. 2022, section 3): powers of 2^(-8/n), n a power of two.

    Heads beyond the largest power of two take every other slope of the next one.
    """
    base = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (h + 1) / base) for h in range(base)]
    slopes += [2.0 ** (-4 * (2 * h + 1) / base) for h in range(heads - base)]
    return np.array(slopes, np.float32)
