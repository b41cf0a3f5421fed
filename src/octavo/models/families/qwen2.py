"""Qwen2 and Qwen2.5: Llama with biases on q, k, v and, where asked for, windows on upper layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import DecoderConfig, Reader, read_gguf, read_hf
from octavo.models.families.llama import build
from octavo.models.parts import GGUF_NAMES
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    if checkpoint.kind == "gguf":
        return read_gguf(checkpoint, qkv_bias=True)
    return read_hf(checkpoint, qkv_bias=True, windows=windows_of(checkpoint))


def windows_of(checkpoint: Checkpoint) -> tuple[int | None, ...]:
    """Qwen's rule: with use_sliding_window, layers from max_window_layers on have one."""
    read = Reader.of(checkpoint)
    if not read.flag("use_sliding_window"):
        return ()
    layers, first = read.integer("num_hidden_layers"), read.integer("max_window_layers", 28)
    return read.windows(layers, tuple(i >= first for i in range(layers)))


def tiny_config() -> Mapping[str, Mapping[str, Any]]:
    base = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    return {"plain": base, "tied_window": base | window | {"tie_word_embeddings": True}}


FAMILY = Family(
    name="qwen2",
    hf=("qwen2",),
    gguf=("qwen2",),
    names=GGUF_NAMES,
    config=config_of,
    build=build,
    tiny_config=tiny_config,
)
