"""Llama: RMSNorm, rotary GQA attention, SwiGLU (Touvron et al. 2023). SmolLM2 and TinyLlama too.

The weights are taken by models/parts.py (llama_layer), the forward is DecoderLayer's in models/layers.py.
"""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf, read_hf
from octavo.models.parts import GGUF_NAMES, build_llama
from octavo.models.registry import Family


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        return read_gguf(checkpoint, permuted_qk=True)
    bias = read.flag("attention_bias")
    return read_hf(checkpoint, qkv_bias=bias, out_bias=bias, mlp_bias=read.flag("mlp_bias"))


FAMILY = Family(
    name="llama",
    hf=("llama",),
    gguf=("llama",),
    names=GGUF_NAMES,
    config=config_of,
    build=build_llama,
    matches=lambda checkpoint: not checkpoint.config.get("llama.expert_count"),
)
