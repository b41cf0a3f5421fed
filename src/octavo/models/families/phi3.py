"""Phi-3: Llama with fused projections, a window, and LongRoPE in the long versions (Abdin et al. 2024)."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Rotary
from octavo.models.config import DecoderConfig, Reader, read_gguf, read_hf
from octavo.models.layers import COLUMNS, Attention, DecoderLayer, GatedMLP
from octavo.models.loader import Loader
from octavo.models.parts import GGUF_NAMES, DecoderModel, attention_spec, fused_qkv, llama_model, out_proj
from octavo.models.registry import Family

NAMES = GGUF_NAMES | {
    "model.layers.{i}.self_attn.qkv_proj": "blk.{i}.attn_qkv",
    "model.layers.{i}.mlp.gate_up_proj": "blk.{i}.ffn_up",
}


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    read = Reader.of(checkpoint)
    if checkpoint.kind == "gguf":
        window = read.get("attention.sliding_window") or None
        return read_gguf(checkpoint, windows=(window,) * read.integer("block_count") if window else ())
    return read_hf(checkpoint, windows=read.windows(read.integer("num_hidden_layers")))


def build(c: DecoderConfig, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    return llama_model(c, load, [_layer(c, load, i, rotary) for i in range(c.num_layers)])


def _layer(c: DecoderConfig, load: Loader, i: int, rotary: Rotary | None) -> DecoderLayer:
    name, hidden = f"model.layers.{i}", c.hidden_size
    return DecoderLayer(
        attention_norm=load.rms_norm(f"{name}.input_layernorm", hidden, c.norm_eps),
        attention=Attention(
            index=i,
            qkv=fused_qkv(c, load, f"{name}.self_attn.qkv_proj", bias=False),
            out=out_proj(c, load, f"{name}.self_attn.o_proj"),
            spec=attention_spec(c, i),
            rotary=rotary,
        ),
        mlp_norm=load.rms_norm(f"{name}.post_attention_layernorm", hidden, c.norm_eps),
        mlp=GatedMLP(
            load.fused_gated(f"{name}.mlp.gate_up_proj", (c.intermediate_size, hidden)),
            load.linear(f"{name}.mlp.down_proj", (hidden, c.intermediate_size), COLUMNS),
            c.activation,
        ),
    )


FAMILY = Family(name="phi3", hf=("phi3",), gguf=("phi3",), names=NAMES, config=config_of, build=build)
