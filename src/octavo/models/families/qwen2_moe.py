"""Qwen2-MoE: Qwen2 with many small experts, and one beside them whose share a sigmoid sets."""

from __future__ import annotations

from functools import partial

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Rotary
from octavo.models.config import ConfigReader, read_gguf, read_hf
from octavo.models.layers import DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, build_llama, llama_layer
from octavo.models.parts_moe import MOE_NAMES, MoEConfig, moe
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> MoEConfig:
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        return MoEConfig.of(
            read_gguf(checkpoint, qkv_bias=True),
            num_experts=read.integer("expert_count"),
            top_k=read.integer("expert_used_count"),
            expert_size=read.integer("expert_feed_forward_length"),
            renormalize=False,
            shared_size=read.integer("expert_shared_feed_forward_length"),
        )
    layers = read.integer("num_hidden_layers")
    # Where layer_types is missing: every other layer below max_window_layers.
    slides = tuple(i % 2 == 0 and i < read.integer("max_window_layers", 28) for i in range(layers))
    windows = read.windows(layers, slides) if read.flag("use_sliding_window") else ()
    return MoEConfig.of(
        read_hf(checkpoint, qkv_bias=read.flag("qkv_bias", True), windows=windows),
        num_experts=read.integer("num_experts", 60),
        top_k=read.integer("num_experts_per_tok", 4),
        expert_size=read.integer("moe_intermediate_size"),
        renormalize=read.flag("norm_topk_prob"),
        shared_size=read.integer("shared_expert_intermediate_size"),
        dense_layers=dense_layers(read, layers),
    )


def dense_layers(read: ConfigReader, layers: int) -> frozenset[int]:
    """Layers without experts: those of mlp_only_layers, and all but each decoder_sparse_step-th."""
    step, listed = read.integer("decoder_sparse_step", 1), read.get("mlp_only_layers", [])
    return frozenset(i for i in range(layers) if i in listed or (i + 1) % step)


def moe_layer(c: MoEConfig, load: Loader, i: int, rotary: Rotary | None) -> DecoderLayer:
    mlp = None if i in c.dense_layers else moe(c, load, f"model.layers.{i}.mlp")
    return llama_layer(c, load, i, rotary, mlp)


FAMILY = Family(
    name="qwen2_moe",
    hf=("qwen2_moe",),
    gguf=("qwen2moe",),
    names=GGUF_NAMES | MOE_NAMES,
    config=config_of,
    build=partial(build_llama, layer=moe_layer),
)
