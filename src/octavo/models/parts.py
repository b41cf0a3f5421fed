"""How Llama and its descendants name and shape their layers, and the model around them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.kernels.ops import F32, AttentionSpec, Inputs, KVCache, KVSpec, Ops, Rotary, Scaling, Tensor
from octavo.models.config import DecoderConfig
from octavo.models.layers import (
    COLUMNS,
    MLP,
    Attention,
    Block,
    DecoderLayer,
    DecoderStack,
    Embedding,
    GatedMLP,
    Linear,
    heads_in,
    heads_out,
)
from octavo.models.loader import Loader, Order

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
    "model.layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
    "model.layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    "model.layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
    "model.layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
    "model.layers.{i}.self_attn.q_norm": "blk.{i}.attn_q_norm",
    "model.layers.{i}.self_attn.k_norm": "blk.{i}.attn_k_norm",
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
    "model.layers.{i}.mlp.gate_proj": "blk.{i}.ffn_gate",
    "model.layers.{i}.mlp.up_proj": "blk.{i}.ffn_up",
    "model.layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
}
"""transformers' names in Llama and its descendants -> GGUF's."""

MakeLayer = Callable[[Any, Loader, int, Rotary | None], Block]
"""(a family's config, loader, number, rotation) -> that layer."""


@dataclass(frozen=True, slots=True, eq=False)
class DecoderModel:
    """A decoder-only model (models.registry.Model); each layer's attention says what it keeps."""

    stack: DecoderStack
    max_position: int

    @property
    def vocab_size(self) -> int:
        return self.stack.head.weight.shape[0]

    def kv_specs(self, dtype: str) -> Sequence[KVSpec]:
        return [kv_spec(layer.attention.spec, dtype) for layer in self.stack.layers]

    @property
    def hidden_size(self) -> int:
        return self.stack.head.weight.shape[1]

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache, taps: Collection[int] = ()) -> Tensor:
        return self.stack(ops, inputs, kv, taps)

    def hidden(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        return self.stack.hidden(ops, inputs, kv)


def kv_spec(s: AttentionSpec, dtype: str) -> KVSpec:
    """What the pages of a layer with such attention hold."""
    return KVSpec(s.num_kv_heads, s.head_dim, s.v_head_dim, dtype, s.latent, s.window)


def llama_model(c: DecoderConfig, load: Loader, layers: Sequence[Block]) -> DecoderModel:
    """Llama's embedding, final norm and head around the layers."""
    table = load.table("model.embed_tokens", (c.vocab_size, c.hidden_size))
    stack = DecoderStack(
        embedding=Embedding(table, c.embed_scale),
        layers=layers,
        norm=load.rms_norm("model.norm", c.hidden_size, c.norm_eps, c.unit_norm),
        head=load.head("lm_head", table, c.tie_word_embeddings),
        scaling=Scaling(softcap=c.logit_softcap),
    )
    return DecoderModel(stack, c.max_position)


def llama_layer(
    c: DecoderConfig, load: Loader, i: int, rotary: Rotary | None, mlp: MLP | None = None
) -> DecoderLayer:
    """Layer i of Llama, with another feed-forward layer where given."""
    name = f"model.layers.{i}"
    return DecoderLayer(
        attention_norm=load.rms_norm(f"{name}.input_layernorm", c.hidden_size, c.norm_eps, c.unit_norm),
        attention=llama_attention(c, load, i, rotary),
        mlp_norm=load.rms_norm(f"{name}.post_attention_layernorm", c.hidden_size, c.norm_eps, c.unit_norm),
        mlp=mlp or gated_mlp(c, load, f"{name}.mlp", c.intermediate_size),
    )


def build_llama(c: DecoderConfig, load: Loader, layer: MakeLayer = llama_layer) -> DecoderModel:
    """Llama, or a descendant that differs from it by what its config says, or by its layers."""
    rotary = load.rotary(c.rope, c.max_position)
    return llama_model(c, load, [layer(c, load, i, rotary) for i in range(c.num_layers)])


def llama_attention(c: DecoderConfig, load: Loader, i: int, rotary: Rotary | None) -> Attention:
    """self_attn of layer i: q, k, v apart, and o."""
    name = f"model.layers.{i}.self_attn"
    gains: list[F32 | None] = [None, None]
    if c.qk_norm:
        gains = [
            load.rms_norm(f"{name}.{side}_norm", c.head_dim, c.norm_eps, c.unit_norm).gain for side in "qk"
        ]
    return Attention(
        index=i,
        qkv=separate_qkv(c, load, name),
        out=out_proj(c, load, f"{name}.o_proj"),
        spec=attention_spec(c, i),
        rotary=None if i in c.unrotated else rotary,
        q_norm=gains[0],
        k_norm=gains[1],
        eps=c.norm_eps,
    )


def attention_spec(c: DecoderConfig, layer: int) -> AttentionSpec:
    return AttentionSpec(
        num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        v_head_dim=c.head_dim,
        scale=c.head_dim**-0.5 if c.attention_scale is None else c.attention_scale,
        window=c.window(layer),
        softcap=c.softcap,
    )


def separate_qkv(c: DecoderConfig, load: Loader, name: str) -> Linear:
    """q_proj, k_proj and v_proj of a module, as one."""
    q_rows, kv_rows = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    q_order = unpermute(c.num_heads, c.head_dim) if c.permuted_qk else None
    k_order = unpermute(c.num_kv_heads, c.head_dim) if c.permuted_qk else None
    parts = [
        (f"{name}.q_proj", q_rows, q_order),
        (f"{name}.k_proj", kv_rows, k_order),
        (f"{name}.v_proj", kv_rows, None),
    ]
    return load.stacked(parts, c.hidden_size, heads_out(c.head_dim), c.qkv_bias)


def out_proj(c: DecoderConfig, load: Loader, name: str) -> Linear:
    """What reads the heads' outputs."""
    shape = (c.hidden_size, c.num_heads * c.head_dim)
    return load.linear(name, shape, heads_in(c.head_dim), c.out_bias)


def gated_mlp(c: DecoderConfig, load: Loader, name: str, width: int) -> GatedMLP:
    """gate_proj, up_proj and down_proj of a module."""
    return GatedMLP(
        load.gated(f"{name}.gate_proj", f"{name}.up_proj", (width, c.hidden_size), c.mlp_bias),
        load.linear(f"{name}.down_proj", (c.hidden_size, width), COLUMNS, c.mlp_bias),
        c.activation,
    )


def unpermute(heads: int, head_dim: int) -> Order:
    """Rows of a GGUF llama q or k in transformers' order: pairs (i, i + D/2), stored as (2i, 2i+1)."""
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
