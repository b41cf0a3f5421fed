"""Qwen3-MoE: Qwen3 with many small experts, none of them shared."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import Reader, read_gguf, read_hf
from octavo.models.families.qwen2_moe import build, dense_layers
from octavo.models.parts import GGUF_NAMES
from octavo.models.parts_moe import MOE_NAMES, MoEConfig
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> MoEConfig:
    read = Reader.of(checkpoint)
    if checkpoint.kind == "gguf":
        return MoEConfig.of(
            read_gguf(checkpoint),
            num_experts=read.integer("expert_count"),
            top_k=read.integer("expert_used_count"),
            expert_size=read.integer("expert_feed_forward_length"),
            renormalize=True,
        )
    layers, bias = read.integer("num_hidden_layers"), read.flag("attention_bias")
    windows = read.windows(layers) if read.flag("use_sliding_window") else ()
    return MoEConfig.of(
        read_hf(checkpoint, qkv_bias=bias, out_bias=bias, windows=windows),
        num_experts=read.integer("num_local_experts", read.integer("num_experts", 128)),
        top_k=read.integer("num_experts_per_tok", 8),
        expert_size=read.integer("moe_intermediate_size"),
        renormalize=read.flag("norm_topk_prob"),
        dense_layers=dense_layers(read, layers),
    )


def tiny_config() -> Mapping[str, Mapping[str, Any]]:
    base = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    } | {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 32,
        "norm_topk_prob": True,
    }
    window = {"use_sliding_window": True, "sliding_window": 24, "norm_topk_prob": False}
    return {"plain": base, "window": base | window | {"mlp_only_layers": [1], "attention_bias": True}}


FAMILY = Family(
    name="qwen3_moe",
    hf=("qwen3_moe",),
    gguf=("qwen3moe",),
    names=GGUF_NAMES | MOE_NAMES,
    config=config_of,
    build=partial(build, qk_norm=True),
    tiny_config=tiny_config,
)
