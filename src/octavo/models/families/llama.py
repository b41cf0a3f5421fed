"""Llama: RMSNorm, rotary GQA attention, SwiGLU (Touvron et al. 2023). SmolLM2 and TinyLlama too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import DecoderConfig, Reader, read_gguf, read_hf
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, DecoderModel, llama_layer, llama_model
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = Reader.of(checkpoint)
    if checkpoint.kind == "gguf":
        return read_gguf(checkpoint, permuted_qk=True)
    bias = read.flag("attention_bias")
    return read_hf(checkpoint, qkv_bias=bias, out_bias=bias, mlp_bias=read.flag("mlp_bias"))


def build(c: DecoderConfig, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    return llama_model(c, load, [llama_layer(c, load, i, rotary) for i in range(c.num_layers)])


def tiny_config() -> Mapping[str, Mapping[str, Any]]:
    base: dict[str, Any] = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    scalings: dict[str, dict[str, Any]] = {
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "linear": {"factor": 2.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
        "dynamic": {"factor": 2.0},
    }
    scaled = {
        kind: base | {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **keys}}
        for kind, keys in scalings.items()
    }
    tied_biased = base | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    return {"plain": base, "tied_biased": tied_biased, **scaled}


FAMILY = Family(
    name="llama",
    hf=("llama",),
    gguf=("llama",),
    names=GGUF_NAMES,
    config=config_of,
    build=build,
    tiny_config=tiny_config,
    matches=lambda checkpoint: not checkpoint.config.get("llama.expert_count"),
)
