"""SmolLM3: Llama whose every fourth layer knows no positions (NoPE, Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import DecoderConfig, Reader, read_hf
from octavo.models.loader import Loader
from octavo.models.parts import DecoderModel, llama_layer, llama_model
from octavo.models.registry import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolLM3Config(DecoderConfig):
    """rotates: for each layer, whether q and k are rotated."""

    rotates: tuple[bool, ...]


def config_of(checkpoint: Checkpoint) -> SmolLM3Config:
    read = Reader.of(checkpoint)
    layers, every = read.integer("num_hidden_layers"), read.integer("no_rope_layer_interval", 4)
    listed = read.get("no_rope_layers", [(i + 1) % every != 0 for i in range(layers)])
    if not isinstance(listed, list) or len(listed) != layers:
        raise read.error("no_rope_layers", f"must list {layers} layers, not {listed!r}")
    rotates = tuple(bool(entry) for entry in listed)  # 1: rotated, whatever the key's name says
    windows = read.windows(layers, tuple(not r for r in rotates)) if read.flag("use_sliding_window") else ()
    bias, mlp_bias = read.flag("attention_bias"), read.flag("mlp_bias")
    config = read_hf(checkpoint, qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias, windows=windows)
    return SmolLM3Config.of(config, rotates=rotates)


def build(c: SmolLM3Config, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    layers = [llama_layer(c, load, i, rotary if c.rotates[i] else None) for i in range(c.num_layers)]
    return llama_model(c, load, layers)


def tiny_config() -> Mapping[str, Mapping[str, Any]]:
    base = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    } | {"no_rope_layer_interval": 2, "num_hidden_layers": 4, "pad_token_id": 0}
    window = {"use_sliding_window": True, "sliding_window": 24, "mlp_bias": True}
    return {"plain": base, "window": base | window}


FAMILY = Family(
    name="smollm3",
    hf=("smollm3",),
    gguf=(),
    names={},
    config=config_of,
    build=build,
    tiny_config=tiny_config,
)
