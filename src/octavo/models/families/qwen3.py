"""Qwen3: Qwen2 without biases, with an RMS norm of each head of q and k before rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import DecoderConfig, Reader, read_gguf, read_hf
from octavo.models.families.qwen2 import windows_of
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, DecoderModel, llama_layer, llama_model
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    if checkpoint.kind == "gguf":
        return read_gguf(checkpoint)
    bias = Reader.of(checkpoint).flag("attention_bias")
    return read_hf(checkpoint, qkv_bias=bias, out_bias=bias, windows=windows_of(checkpoint))


def build(c: DecoderConfig, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    layers = [llama_layer(c, load, i, rotary, qk_norm=True) for i in range(c.num_layers)]
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
    } | {"head_dim": 32}
    biased = {"attention_bias": True, "tie_word_embeddings": True}
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    return {"plain": base, "biased": base | biased, "window": base | window}


FAMILY = Family(
    name="qwen3",
    hf=("qwen3",),
    gguf=("qwen3",),
    names=GGUF_NAMES,
    config=config_of,
    build=build,
    tiny_config=tiny_config,
)
