"""Llama: RMSNorm, rotary GQA attention, SwiGLU (Touvron et al. 2023). SmolLM2 and TinyLlama too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import Checkpoint
from octavo.errors import CheckpointError
from octavo.kernels.ops import Activation, AttentionSpec, Inputs, KVCache, KVSpec, Ops, Rotary, Tensor
from octavo.layers.attention import Attention
from octavo.layers.decoder import DecoderLayer, DecoderStack
from octavo.layers.linear import Linear
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import rotary_tables
from octavo.models.config import DecoderConfig, Reader
from octavo.models.loader import Loader
from octavo.models.registry import Family

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.{i}.input_layernorm.weight": "blk.{i}.attn_norm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": "blk.{i}.attn_q.weight",
    "model.layers.{i}.self_attn.k_proj.weight": "blk.{i}.attn_k.weight",
    "model.layers.{i}.self_attn.v_proj.weight": "blk.{i}.attn_v.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
    "model.layers.{i}.post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
    "model.layers.{i}.mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
    "model.layers.{i}.mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
    "model.layers.{i}.mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
}


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    """Read config.json or GGUF metadata; what the forward below does not compute is refused."""
    return _from_gguf(checkpoint) if checkpoint.kind == "gguf" else _from_hf(checkpoint)


def _from_hf(checkpoint: Checkpoint) -> DecoderConfig:
    read = Reader(checkpoint.config, "config.json")
    read.refuse("hidden_act", ("silu",))
    read.refuse("attention_bias", (False,))
    read.refuse("mlp_bias", (False,))
    read.refuse("partial_rotary_factor", (1, 1.0))
    heads, hidden = read.integer("num_attention_heads"), read.integer("hidden_size")
    # transformers 5 writes rope_parameters; before, rope_theta and rope_scaling stood apart.
    rope = dict(read.get("rope_parameters") or read.get("rope_scaling") or {})
    theta = float(rope.pop("rope_theta", read.number("rope_theta", 10000.0)))
    return DecoderConfig(
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        num_layers=read.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=read.integer("num_key_value_heads", heads),
        head_dim=read.integer("head_dim", hidden // max(heads, 1)),
        max_position=read.integer("max_position_embeddings", 2048),
        rms_norm_eps=read.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=rope or None,
        tie_word_embeddings=bool(read.get("tie_word_embeddings", False)),
    )


def _from_gguf(checkpoint: Checkpoint) -> DecoderConfig:
    read = Reader(checkpoint.config, "GGUF metadata", "llama.")
    read.refuse("rope.scaling.type", ("none",))
    if "rope_freqs.weight" in checkpoint.tensors:
        raise CheckpointError("rope_freqs.weight (scaled rotary in a GGUF file) is not supported yet")
    read.refuse("expert_count", (0,))
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    head_dim = read.integer("attention.key_length", hidden // max(heads, 1))
    if read.integer("rope.dimension_count", head_dim) != head_dim:
        raise CheckpointError("GGUF metadata: llama.rope.dimension_count differs from the head's width")
    tokens = checkpoint.config.get("tokenizer.ggml.tokens", ())
    return DecoderConfig(
        vocab_size=read.integer("vocab_size", len(tokens)),
        hidden_size=hidden,
        intermediate_size=read.integer("feed_forward_length"),
        num_layers=read.integer("block_count"),
        num_heads=heads,
        num_kv_heads=read.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position=read.integer("context_length"),
        rms_norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        rope_theta=read.number("rope.freq_base", 10000.0),
        tie_word_embeddings="output.weight" not in checkpoint.tensors,
        permuted_qk=True,
    )


class Llama:
    """Stack of pre-norm decoder layers; head tied to the embedding where the checkpoint says so."""

    def __init__(self, config: DecoderConfig, load: Loader) -> None:
        self._config = config
        rotary = rotary_tables(config.head_dim, config.rope_theta, config.max_position, config.rope_scaling)
        table_shape = (config.vocab_size, config.hidden_size)
        table = load.pack([load.weight("model.embed_tokens.weight", table_shape)])
        tied = config.tie_word_embeddings
        self._stack = DecoderStack(
            table=table,
            layers=[_layer(config, load, i, rotary) for i in range(config.num_layers)],
            norm=load.rms_norm("model.norm", config.hidden_size, config.rms_norm_eps),
            head=table if tied else load.linear("lm_head", table_shape).weight,
        )

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def max_position(self) -> int:
        return self._config.max_position

    def kv_specs(self, dtype: str) -> Sequence[KVSpec]:
        c = self._config
        return [KVSpec(c.num_kv_heads, c.head_dim, c.head_dim, dtype)] * c.num_layers

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        return self._stack(ops, inputs, kv)


def _layer(c: DecoderConfig, load: Loader, i: int, rotary: Rotary) -> DecoderLayer:
    name, hidden = f"model.layers.{i}", c.hidden_size
    q_rows, kv_rows = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    q_order = _unpermute(c.num_heads, c.head_dim) if c.permuted_qk else None
    k_order = _unpermute(c.num_kv_heads, c.head_dim) if c.permuted_qk else None
    qkv = load.pack(
        [
            load.weight(f"{name}.self_attn.q_proj.weight", (q_rows, hidden), q_order),
            load.weight(f"{name}.self_attn.k_proj.weight", (kv_rows, hidden), k_order),
            load.weight(f"{name}.self_attn.v_proj.weight", (kv_rows, hidden)),
        ]
    )
    gate_up = load.pack(
        [load.weight(f"{name}.mlp.{p}_proj.weight", (c.intermediate_size, hidden)) for p in ("gate", "up")],
        gated=True,
    )
    return DecoderLayer(
        attention_norm=load.rms_norm(f"{name}.input_layernorm", hidden, c.rms_norm_eps),
        attention=Attention(
            index=i,
            qkv=Linear(qkv),
            out=load.linear(f"{name}.self_attn.o_proj", (hidden, q_rows)),
            spec=AttentionSpec(c.num_heads, c.num_kv_heads, c.head_dim, c.head_dim, c.head_dim**-0.5),
            rotary=rotary,
        ),
        mlp_norm=load.rms_norm(f"{name}.post_attention_layernorm", hidden, c.rms_norm_eps),
        mlp=GatedMLP(
            Linear(gate_up),
            load.linear(f"{name}.mlp.down_proj", (hidden, c.intermediate_size)),
            Activation.SILU,
        ),
    )


def _unpermute(heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Rows of a GGUF llama q or k in transformers' order: pairs (i, i + D/2), stored as (2i, 2i+1)."""
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def tiny_config() -> dict[str, Any]:
    """Arguments of transformers' LlamaConfig for tests."""
    return {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


FAMILY = Family(
    name="llama",
    hf=("llama",),
    gguf=("llama",),
    names=NAMES,
    config=config_of,
    build=Llama,
    tiny_config=tiny_config,
)
