"""Mistral: Llama with a sliding window (Jiang et al. 2023). GGUF files of it call themselves llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import DecoderConfig, Reader, read_hf
from octavo.models.families.llama import build
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = Reader.of(checkpoint)
    return read_hf(checkpoint, windows=read.windows(read.integer("num_hidden_layers")))


def tiny_config() -> Mapping[str, Mapping[str, Any]]:
    base = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 256,
    }
    return {"window": base | {"sliding_window": 24}, "full": base | {"sliding_window": None}}


FAMILY = Family(
    name="mistral",
    hf=("mistral",),
    gguf=(),
    names={},
    config=config_of,
    build=build,
    tiny_config=tiny_config,
)
