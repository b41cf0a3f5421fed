"""SmolLM3: Llama whose every fourth layer knows no positions (NoPE, Yang et al. 2025)."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig, read_hf
from octavo.models.parts import build_llama
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = ConfigReader.of(checkpoint)
    layers, every = read.integer("num_hidden_layers"), read.integer("no_rope_layer_interval", 4)
    listed = read.get("no_rope_layers", [(i + 1) % every != 0 for i in range(layers)])
    if not isinstance(listed, list) or len(listed) != layers:
        raise read.error("no_rope_layers", f"must list {layers} layers, not {listed!r}")
    unrotated = tuple(not entry for entry in listed)  # 1: rotated, whatever the key's name says
    bias = read.flag("attention_bias")
    return read_hf(
        checkpoint,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=read.flag("mlp_bias"),
        windows=read.windows(layers, unrotated) if read.flag("use_sliding_window") else (),
        unrotated=frozenset(i for i in range(layers) if unrotated[i]),
    )


FAMILY = Family(name="smollm3", hf=("smollm3",), config=config_of, build=build_llama)
