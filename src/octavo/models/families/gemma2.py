"""Gemma 2: norms before and after each sublayer, soft caps, a window in every other layer (2024)."""

from __future__ import annotations

from functools import partial

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Rotary
from octavo.models.config import ConfigReader, DecoderConfig
from octavo.models.families.gemma import gemma_config
from octavo.models.layers import DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, build_llama, gated_mlp, llama_attention
from octavo.models.registry import Family

NAMES = GGUF_NAMES | {
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
    "model.layers.{i}.pre_feedforward_layernorm": "blk.{i}.ffn_norm",
    "model.layers.{i}.post_feedforward_layernorm": "blk.{i}.post_ffw_norm",
}


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        layers = read.integer("block_count")
        return gemma_config(
            checkpoint,
            windows=gguf_windows(read, layers, 2),
            attention_scale=gguf_scale(read, largest=layers == 46),
            softcap=read.optional_number("attn_logit_softcapping"),
            logit_softcap=read.optional_number("final_logit_softcapping"),
        )
    layers = read.integer("num_hidden_layers")
    return gemma_config(
        checkpoint,
        windows=read.windows(layers, tuple(i % 2 == 0 for i in range(layers))),
        attention_scale=read.positive("query_pre_attn_scalar", 256) ** -0.5,
        softcap=read.optional_number("attn_logit_softcapping"),
        logit_softcap=read.optional_number("final_logit_softcapping"),
    )


def gguf_windows(read: ConfigReader, layers: int, period: int) -> tuple[int | None, ...]:
    """GGUF says the window alone: the last layer of each period sees everything, the others have it."""
    window = read.integer("attention.sliding_window", 4096)
    return tuple(None if (i + 1) % period == 0 else window for i in range(layers))


def gguf_scale(read: ConfigReader, largest: bool) -> float:
    """GGUF leaves query_pre_attn_scalar out: it is the head's width but in the 27B models."""
    width = read.integer("embedding_length") // read.integer("attention.head_count")
    scale: float = (width if largest else read.integer("attention.key_length")) ** -0.5
    return scale


def gemma_layer(c: DecoderConfig, load: Loader, i: int, rotary: Rotary | None) -> DecoderLayer:
    name = f"model.layers.{i}"
    before, after, before_mlp, after_mlp = (
        load.rms_norm(f"{name}.{norm}_layernorm", c.hidden_size, c.norm_eps, c.unit_norm)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward")
    )
    return DecoderLayer(
        attention_norm=before,
        attention=llama_attention(c, load, i, rotary),
        mlp_norm=before_mlp,
        mlp=gated_mlp(c, load, f"{name}.mlp", c.intermediate_size),
        attention_post_norm=after,
        mlp_post_norm=after_mlp,
    )


build = partial(build_llama, layer=gemma_layer)
FAMILY = Family(name="gemma2", hf=("gemma2",), gguf=("gemma2",), names=NAMES, config=config_of, build=build)
