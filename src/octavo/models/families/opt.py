"""OPT: learned positions from 2 on, ReLU, and in the 350M norms after and a narrower embedding (2022)."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.checkpoints.base import Checkpoint
from octavo.models.config import ConfigReader, DecoderConfig, read_hf
from octavo.models.layers import WHOLE, Block, DecoderLayer, DecoderStack, Embedding, LayerNorm
from octavo.models.loader import Loader
from octavo.models.parts import DecoderModel, separate_qkv
from octavo.models.parts_gpt import PostNormLayer, attention_of, plain_mlp
from octavo.models.registry import Family

POSITION_OFFSET = 2
"""The table begins with two rows that were for padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OPTConfig(DecoderConfig):
    """norm_first: norms before the sublayers, and one before the head. word_size: of the embedding."""

    norm_first: bool
    final_norm: bool
    word_size: int


def config_of(checkpoint: Checkpoint) -> OPTConfig:
    read = ConfigReader.of(checkpoint)
    read.refuse("layer_norm_elementwise_affine", (True,))
    bias = read.flag("enable_bias", True)
    config = read_hf(
        checkpoint,
        intermediate_size=read.integer("ffn_dim"),
        activation=read.activation("activation_function", "relu"),
        norm_eps=1e-5,
        rope=None,
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )
    first = read.flag("do_layer_norm_before", True)
    return OPTConfig.of(
        config,
        norm_first=first,
        final_norm=first and not read.flag("_remove_final_layer_norm"),
        word_size=read.integer("word_embed_proj_dim", config.hidden_size),
    )


def build(c: OPTConfig, load: Loader) -> DecoderModel:
    name, hidden = "model.decoder", c.hidden_size
    table = load.table(f"{name}.embed_tokens", (c.vocab_size, c.word_size))
    narrow = c.word_size != hidden
    words = Embedding(
        table,
        positions=load.table(f"{name}.embed_positions", (c.max_position + POSITION_OFFSET, hidden)),
        position_offset=POSITION_OFFSET,
        project=load.linear(f"{name}.project_in", (hidden, c.word_size), WHOLE) if narrow else None,
    )
    stack = DecoderStack(
        embedding=words,
        layers=[_layer(c, load, i) for i in range(c.num_layers)],
        norm=load.layer_norm(f"{name}.final_layer_norm", hidden, c.norm_eps) if c.final_norm else None,
        head=load.head("lm_head", table, c.tie_word_embeddings),
        project_out=load.linear(f"{name}.project_out", (c.word_size, hidden), WHOLE) if narrow else None,
    )
    return DecoderModel(stack, c.max_position)


def _layer(c: OPTConfig, load: Loader, i: int) -> Block:
    name, hidden = f"model.decoder.layers.{i}", c.hidden_size

    def norm(which: str) -> LayerNorm:
        return load.layer_norm(f"{name}.{which}", hidden, c.norm_eps)

    qkv = separate_qkv(c, load, f"{name}.self_attn")
    block = DecoderLayer if c.norm_first else PostNormLayer
    return block(
        attention_norm=norm("self_attn_layer_norm"),
        attention=attention_of(c, load, i, qkv, f"{name}.self_attn.out_proj"),
        mlp_norm=norm("final_layer_norm"),
        mlp=plain_mlp(c, load, f"{name}.fc1", f"{name}.fc2"),
    )


FAMILY = Family(name="opt", hf=("opt",), config=config_of, build=build)
