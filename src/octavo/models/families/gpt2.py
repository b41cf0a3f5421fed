"""GPT-2: learned positions, layer norms, biases, matrices stored as [K, N] (Radford et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Activation
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf
from octavo.models.layers import Attention, DecoderLayer, heads_in, heads_out
from octavo.models.loader import Loader, Order
from octavo.models.parts import DecoderModel, attention_spec
from octavo.models.parts_gpt import plain_mlp, plain_model
from octavo.models.registry import Family

NAMES = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{i}.ln_1": "blk.{i}.attn_norm",
    "transformer.h.{i}.attn.c_attn": "blk.{i}.attn_qkv",
    "transformer.h.{i}.attn.c_proj": "blk.{i}.attn_output",
    "transformer.h.{i}.ln_2": "blk.{i}.ffn_norm",
    "transformer.h.{i}.mlp.c_fc": "blk.{i}.ffn_up",
    "transformer.h.{i}.mlp.c_proj": "blk.{i}.ffn_down",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Config(DecoderConfig):
    """scale_by_layer: attention of layer i is divided by i + 1 more (scale_attn_by_inverse_layer_idx)."""

    scale_by_layer: bool = False


def config_of(checkpoint: Checkpoint) -> GPT2Config:
    if checkpoint.kind == "gguf":
        return GPT2Config.of(read_gguf(checkpoint, rope=None, activation=Activation.GELU_TANH, mlp_bias=True))
    read = ConfigReader.of(checkpoint)
    by_layer = read.flag("scale_attn_by_inverse_layer_idx")
    return GPT2Config.of(gpt_config(checkpoint), scale_by_layer=by_layer)


def gpt_config(checkpoint: Checkpoint, kv_heads: int | None = None) -> DecoderConfig:
    """config.json with GPT-2's names; kv_heads None: one for each query head."""
    read = ConfigReader.of(checkpoint)
    read.refuse("add_cross_attention", (False,))
    hidden, heads = read.integer("n_embd"), read.integer("n_head")
    return DecoderConfig(
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("n_inner", 4 * hidden),
        num_layers=read.integer("n_layer"),
        num_heads=heads,
        num_kv_heads=kv_heads or heads,
        head_dim=hidden // max(heads, 1),
        max_position=read.integer("n_positions", 1024),
        norm_eps=read.number("layer_norm_epsilon", 1e-5),
        activation=read.activation("activation_function", "gelu_new"),
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
        mlp_bias=True,
        attention_scale=None if read.flag("scale_attn_weights", True) else 1.0,
    )


def build(c: GPT2Config, load: Loader) -> DecoderModel:
    transposed = load.kind == "hf"
    layers = [gpt_layer(c, load, i, transposed) for i in range(c.num_layers)]
    return gpt_model(c, load, layers)


def gpt_model(c: DecoderConfig, load: Loader, layers: list[DecoderLayer]) -> DecoderModel:
    positions = load.table("transformer.wpe", (c.max_position, c.hidden_size))
    return plain_model(c, load, "transformer.wte", layers, "transformer.ln_f", positions=positions)


def gpt_layer(
    c: DecoderConfig, load: Loader, i: int, transposed: bool, qkv_order: Order | None = None
) -> DecoderLayer:
    name, hidden = f"transformer.h.{i}", c.hidden_size
    rows = [heads * c.head_dim for heads in (c.num_heads, c.num_kv_heads, c.num_kv_heads)]
    spec = attention_spec(c, i)
    if isinstance(c, GPT2Config) and c.scale_by_layer:
        spec = replace(spec, scale=spec.scale / (i + 1))
    qkv_role, out_role = heads_out(c.head_dim, *rows), heads_in(c.head_dim)
    qkv = load.linear(f"{name}.attn.c_attn", (sum(rows), hidden), qkv_role, True, qkv_order, transposed)
    out = load.linear(f"{name}.attn.c_proj", (hidden, rows[0]), out_role, True, transposed=transposed)
    return DecoderLayer(
        attention_norm=load.layer_norm(f"{name}.ln_1", hidden, c.norm_eps),
        attention=Attention(i, qkv, out, spec, rotary=None),
        mlp_norm=load.layer_norm(f"{name}.ln_2", hidden, c.norm_eps),
        mlp=plain_mlp(c, load, f"{name}.mlp.c_fc", f"{name}.mlp.c_proj", transposed),
    )


FAMILY = Family(name="gpt2", hf=("gpt2",), gguf=("gpt2",), names=NAMES, config=config_of, build=build)
