"""Gemma 3, text: five sliding layers to a global one, each with its own rotation, q and k normed (2025)."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig, RopeConfig
from octavo.models.families.gemma import gemma_config
from octavo.models.families.gemma2 import NAMES, gemma_layer, gguf_scale, gguf_windows
from octavo.models.loader import Loader
from octavo.models.parts import DecoderModel, llama_model
from octavo.models.registry import Family

PERIOD = 6
"""Every so manieth layer is global, unless the file says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(DecoderConfig):
    """sliding_rope: the rotation of layers with a window; rope is that of the others."""

    sliding_rope: RopeConfig


def config_of(checkpoint: Checkpoint) -> Gemma3Config:
    read = ConfigReader.of(checkpoint)
    return _from_gguf(checkpoint, read) if checkpoint.kind == "gguf" else _from_hf(checkpoint, read)


def _from_hf(checkpoint: Checkpoint, read: ConfigReader) -> Gemma3Config:
    layers, period = read.integer("num_hidden_layers"), read.integer("sliding_window_pattern", PERIOD)
    head_dim, longest = read.integer("head_dim", 256), read.integer("max_position_embeddings", 131072)
    read.refuse("attn_logit_softcapping", ())
    config = gemma_config(
        checkpoint,
        head_dim=head_dim,
        qk_norm=True,
        windows=read.windows(layers, tuple((i + 1) % period != 0 for i in range(layers))),
        rope=read.rope(head_dim, longest, 1_000_000.0, "full_attention"),
        attention_scale=read.positive("query_pre_attn_scalar", 256) ** -0.5,
        logit_softcap=read.optional_number("final_logit_softcapping"),
    )
    if "sliding_attention" in read.get("rope_parameters", {}):
        sliding = read.rope(head_dim, longest, kind="sliding_attention")
    else:
        sliding = RopeConfig(read.number("rope_local_base_freq", 10000.0), head_dim, {})
    return Gemma3Config.of(config, sliding_rope=sliding)


def _from_gguf(checkpoint: Checkpoint, read: ConfigReader) -> Gemma3Config:
    layers, head_dim = read.integer("block_count"), read.integer("attention.key_length")
    config = gemma_config(
        checkpoint,
        qk_norm=True,
        windows=gguf_windows(read, layers, read.integer("attention.sliding_window_pattern", PERIOD)),
        attention_scale=gguf_scale(read, largest=layers == 62),
        logit_softcap=read.optional_number("final_logit_softcapping"),
    )
    return Gemma3Config.of(
        config, sliding_rope=RopeConfig(read.number("rope.freq_base_swa", 10000.0), head_dim, {})
    )


def build(c: Gemma3Config, load: Loader) -> DecoderModel:
    everywhere, nearby = load.rotary(c.rope, c.max_position), load.rotary(c.sliding_rope, c.max_position)
    layers = [
        gemma_layer(c, load, i, everywhere if c.window(i) is None else nearby) for i in range(c.num_layers)
    ]
    return llama_model(c, load, layers)


FAMILY = Family(
    name="gemma3_text", hf=("gemma3_text",), gguf=("gemma3",), names=NAMES, config=config_of, build=build
)
