"""Phi-3: Llama with fused projections, a window, and LongRoPE in the long versions (Abdin et al. 2024)."""

from __future__ import annotations

from functools import partial

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Rotary
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf, read_hf
from octavo.models.layers import COLUMNS, DecoderLayer, GatedMLP
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, build_llama
from octavo.models.parts_gpt import attention_of, fused_qkv
from octavo.models.registry import Family

NAMES = GGUF_NAMES | {
    "model.layers.{i}.self_attn.qkv_proj": "blk.{i}.attn_qkv",
    "model.layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
}


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        window = read.get("attention.sliding_window") or None
        return read_gguf(checkpoint, windows=(window,) * read.integer("block_count") if window else ())
    return read_hf(checkpoint, windows=read.windows(read.integer("num_hidden_layers")))


def _layer(c: DecoderConfig, load: Loader, i: int, rotary: Rotary | None) -> DecoderLayer:
    name, hidden = f"model.layers.{i}", c.hidden_size
    qkv = fused_qkv(c, load, f"{name}.self_attn.qkv_proj")
    return DecoderLayer(
        attention_norm=load.rms_norm(f"{name}.input_layernorm", hidden, c.norm_eps),
        attention=attention_of(c, load, i, qkv, f"{name}.self_attn.o_proj", rotary),
        mlp_norm=load.rms_norm(f"{name}.post_attention_layernorm", hidden, c.norm_eps),
        mlp=GatedMLP(
            load.fused_gated(f"{name}.mlp.gate_up_proj", (c.intermediate_size, hidden)),
            load.linear(f"{name}.mlp.down_proj", (hidden, c.intermediate_size), COLUMNS),
            c.activation,
        ),
    )


build = partial(build_llama, layer=_layer)
FAMILY = Family(name="phi3", hf=("phi3",), gguf=("phi3",), names=NAMES, config=config_of, build=build)
