"""OLMo 2: Llama with norms after the sublayers alone, and on all of q and k (OLMo team 2025)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Rotary
from octavo.models.config import ConfigReader, DecoderConfig, read_hf
from octavo.models.layers import DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import build_llama, gated_mlp, llama_attention
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    bias = ConfigReader.of(checkpoint).flag("attention_bias")
    return read_hf(checkpoint, qkv_bias=bias, out_bias=bias)


def _layer(c: DecoderConfig, load: Loader, i: int, rotary: Rotary | None) -> DecoderLayer:
    name = f"model.layers.{i}"
    attention = replace(
        llama_attention(c, load, i, rotary),
        q_norm=load.vector(f"{name}.self_attn.q_norm.weight", c.num_heads * c.head_dim),
        k_norm=load.vector(f"{name}.self_attn.k_norm.weight", c.num_kv_heads * c.head_dim),
    )
    return DecoderLayer(
        attention_norm=None,
        attention=attention,
        mlp_norm=None,
        mlp=gated_mlp(c, load, f"{name}.mlp", c.intermediate_size),
        attention_post_norm=load.rms_norm(f"{name}.post_attention_layernorm", c.hidden_size, c.norm_eps),
        mlp_post_norm=load.rms_norm(f"{name}.post_feedforward_layernorm", c.hidden_size, c.norm_eps),
    )


FAMILY = Family(name="olmo2", hf=("olmo2",), config=config_of, build=partial(build_llama, layer=_layer))
