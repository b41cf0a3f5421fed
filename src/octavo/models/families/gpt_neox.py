"""GPT-NeoX and Pythia: partial rotation, attention and MLP side by side (Black et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Rotary
from octavo.models.config import ConfigReader, DecoderConfig, RopeConfig, read_hf
from octavo.models.layers import Block, DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import DecoderModel
from octavo.models.parts_gpt import ParallelLayer, attention_of, fused_qkv, plain_mlp, plain_model, ungroup
from octavo.models.registry import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class NeoXConfig(DecoderConfig):
    """parallel: attention and MLP read the same x (use_parallel_residual)."""

    parallel: bool


def config_of(checkpoint: Checkpoint) -> NeoXConfig:
    read = ConfigReader.of(checkpoint)
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_dim, longest = hidden // max(heads, 1), read.integer("max_position_embeddings", 2048)
    rope = read.rope(head_dim, longest, read.number("rotary_emb_base", 10000.0))
    if read.get("rotary_pct") is not None:  # as it was called before partial_rotary_factor
        rope = RopeConfig(rope.theta, int(head_dim * read.number("rotary_pct")), rope.scaling)
    bias = read.flag("attention_bias", True)
    config = read_hf(
        checkpoint,
        activation=read.activation("hidden_act", "gelu"),
        norm_eps=read.number("layer_norm_eps", 1e-5),
        num_kv_heads=heads,
        head_dim=head_dim,
        rope=rope,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
    )
    return NeoXConfig.of(config, parallel=read.flag("use_parallel_residual", True))


def build(c: NeoXConfig, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    layers = [_layer(c, load, i, rotary) for i in range(c.num_layers)]
    return plain_model(c, load, "gpt_neox.embed_in", layers, "gpt_neox.final_layer_norm", "embed_out")


def _layer(c: NeoXConfig, load: Loader, i: int, rotary: Rotary | None) -> Block:
    name, hidden = f"gpt_neox.layers.{i}", c.hidden_size
    order = ungroup(c.num_heads, (1, 1, 1), c.head_dim)
    qkv = fused_qkv(c, load, f"{name}.attention.query_key_value", order)
    block = ParallelLayer if c.parallel else DecoderLayer
    return block(
        attention_norm=load.layer_norm(f"{name}.input_layernorm", hidden, c.norm_eps),
        attention=attention_of(c, load, i, qkv, f"{name}.attention.dense", rotary),
        mlp_norm=load.layer_norm(f"{name}.post_attention_layernorm", hidden, c.norm_eps),
        mlp=plain_mlp(c, load, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h"),
    )


FAMILY = Family(
    name="gpt_neox",
    hf=("gpt_neox",),
    config=config_of,
    build=build,
    ignored=("*.attention.bias", "*.attention.masked_bias"),
)
