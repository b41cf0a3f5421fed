"""Qwen3-MoE: Qwen3 with many small experts, none of them shared."""

from __future__ import annotations

from functools import partial

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, read_gguf, read_hf
from octavo.models.families.qwen2_moe import dense_layers, moe_layer
from octavo.models.parts import GGUF_NAMES, build_llama
from octavo.models.parts_moe import MOE_NAMES, MoEConfig
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> MoEConfig:
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        return MoEConfig.of(
            read_gguf(checkpoint, qk_norm=True),
            num_experts=read.integer("expert_count"),
            top_k=read.integer("expert_used_count"),
            expert_size=read.integer("expert_feed_forward_length"),
            renormalize=True,
        )
    layers, bias = read.integer("num_hidden_layers"), read.flag("attention_bias")
    windows = read.windows(layers) if read.flag("use_sliding_window") else ()
    return MoEConfig.of(
        read_hf(checkpoint, qkv_bias=bias, out_bias=bias, windows=windows, qk_norm=True),
        num_experts=read.integer("num_local_experts", read.integer("num_experts", 128)),
        top_k=read.integer("num_experts_per_tok", 8),
        expert_size=read.integer("moe_intermediate_size"),
        renormalize=read.flag("norm_topk_prob"),
        dense_layers=dense_layers(read, layers),
    )


FAMILY = Family(
    name="qwen3_moe",
    hf=("qwen3_moe",),
    gguf=("qwen3moe",),
    names=GGUF_NAMES | MOE_NAMES,
    config=config_of,
    build=partial(build_llama, layer=moe_layer),
)
