"""Gemma: Llama with a scaled embedding, gains of 1 + w and a tanh GELU gate (Gemma team 2024)."""

from __future__ import annotations

from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Activation
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf, read_hf
from octavo.models.parts import GGUF_NAMES, build_llama
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    return gemma_config(checkpoint)


def gemma_config(checkpoint: Checkpoint, **changes: Any) -> DecoderConfig:
    """What all Gemmas have in common. In GGUF files the 1 of 1 + w has been added to the gains."""
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        width = read.integer("embedding_length")
        return read_gguf(checkpoint, activation=Activation.GELU_TANH, embed_scale=width**0.5, **changes)
    read.refuse("use_bidirectional_attention", (False,))
    bias = read.flag("attention_bias")
    common: dict[str, Any] = {
        # The first files say hidden_act "gelu" and mean what hidden_activation says.
        "activation": read.activation("hidden_activation", read.get("hidden_act", "gelu_pytorch_tanh")),
        "embed_scale": read.integer("hidden_size") ** 0.5,
        "unit_norm": True,
        "qkv_bias": bias,
        "out_bias": bias,
        "tie_word_embeddings": read.flag("tie_word_embeddings", True),
    }
    return read_hf(checkpoint, **{**common, **changes})


FAMILY = Family(
    name="gemma", hf=("gemma",), gguf=("gemma",), names=GGUF_NAMES, config=config_of, build=build_llama
)
