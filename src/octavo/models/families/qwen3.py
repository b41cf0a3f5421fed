"""Qwen3: Qwen2 without biases, with an RMS norm of each head of q and k before rotation."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf, read_hf
from octavo.models.families.qwen2 import windows_of
from octavo.models.parts import GGUF_NAMES, build_llama
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    if checkpoint.kind == "gguf":
        return read_gguf(checkpoint, qk_norm=True)
    bias = ConfigReader.of(checkpoint).flag("attention_bias")
    return read_hf(checkpoint, qkv_bias=bias, out_bias=bias, windows=windows_of(checkpoint), qk_norm=True)


FAMILY = Family(
    name="qwen3", hf=("qwen3",), gguf=("qwen3",), names=GGUF_NAMES, config=config_of, build=build_llama
)
