"""Qwen2 and Qwen2.5: Llama with biases on q, k, v and, where asked for, windows on upper layers."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf, read_hf
from octavo.models.parts import GGUF_NAMES, build_llama
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    if checkpoint.kind == "gguf":
        return read_gguf(checkpoint, qkv_bias=True)
    return read_hf(checkpoint, qkv_bias=True, windows=windows_of(checkpoint))


def windows_of(checkpoint: Checkpoint) -> tuple[int | None, ...]:
    """Qwen's rule: with use_sliding_window, layers from max_window_layers on have one."""
    read = ConfigReader.of(checkpoint)
    if not read.flag("use_sliding_window"):
        return ()
    layers, first = read.integer("num_hidden_layers"), read.integer("max_window_layers", 28)
    return read.windows(layers, tuple(i >= first for i in range(layers)))


FAMILY = Family(
    name="qwen2", hf=("qwen2",), gguf=("qwen2",), names=GGUF_NAMES, config=config_of, build=build_llama
)
