"""BART: learned positions from 2 on, norms after each sublayer and on the embedding (Lewis et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Activation, PackedWeight, Sight
from octavo.models.config import ConfigReader
from octavo.models.layers import COLUMNS, ROWS, Embedding, LayerNorm
from octavo.models.loader import Loader
from octavo.models.parts_cross import (
    AttentionLoader,
    CrossLayer,
    EncoderDecoderModel,
    EncoderDecoderStack,
)
from octavo.models.parts_gpt import PlainMLP, PostNormLayer
from octavo.models.registry import Family

POSITION_OFFSET = 2
"""The table begins with two rows that were for padding."""

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Half:
    """The encoder or the decoder: name, and its numbers in config.json."""

    name: str
    layers: int
    heads: int
    ffn_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BartConfig:
    vocab_size: int
    d_model: int
    max_position: int
    encoder: Half
    decoder: Half
    activation: Activation
    embed_scale: float
    tie_word_embeddings: bool


def config_of(checkpoint: Checkpoint) -> BartConfig:
    read = ConfigReader.of(checkpoint)
    read.refuse("normalize_before", (False,))  # of the first mBART's files
    read.refuse("add_final_layer_norm", (False,))
    read.refuse("static_position_embeddings", (False,))
    read.refuse("normalize_embedding", (True,))
    read.refuse("extra_pos_embeddings", (POSITION_OFFSET,))
    hidden = read.integer("d_model")

    def half(name: str) -> Half:
        heads = read.integer(f"{name}_attention_heads")
        if heads < 1 or hidden % heads:
            raise read.error(f"{name}_attention_heads", f"= {heads} does not divide d_model {hidden}")
        return Half(f"model.{name}", read.integer(f"{name}_layers"), heads, read.integer(f"{name}_ffn_dim"))

    return BartConfig(
        vocab_size=read.integer("vocab_size"),
        d_model=hidden,
        max_position=read.integer("max_position_embeddings"),
        encoder=half("encoder"),
        decoder=half("decoder"),
        activation=read.activation("activation_function", "gelu"),
        embed_scale=hidden**0.5 if read.flag("scale_embedding") else 1.0,
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
    )


def build(c: BartConfig, load: Loader) -> EncoderDecoderModel:
    tables = [_table(c, load, half) for half in (c.encoder, c.decoder)]
    head = load.head("lm_head", tables[1], c.tie_word_embeddings)
    bias = load.matrix("final_logits_bias", (1, c.vocab_size))[0] if load.has("final_logits_bias") else None
    stack = EncoderDecoderStack(
        source=_embedding(c, load, c.encoder, tables[0]),
        encoder=[_encoder_layer(c, load, i) for i in range(c.encoder.layers)],
        encoder_norm=None,
        embedding=_embedding(c, load, c.decoder, tables[1]),
        layers=[_decoder_layer(c, load, i) for i in range(c.decoder.layers)],
        norm=None,
        head=replace(head, bias=bias),
    )
    return EncoderDecoderModel(stack, c.max_position, c.max_position)


def _table(c: BartConfig, load: Loader, half: Half) -> PackedWeight:
    """Both halves share an embedding, unless they are said not to and each has its own."""
    own, shape = f"{half.name}.embed_tokens", (c.vocab_size, c.d_model)
    if not c.tie_word_embeddings and load.has(f"{own}.weight"):
        return load.table(own, shape)
    return load.once("model.shared", shape)


def _embedding(c: BartConfig, load: Loader, half: Half, table: PackedWeight) -> Embedding:
    return Embedding(
        table,
        c.embed_scale,
        positions=load.table(f"{half.name}.embed_positions", (c.max_position + POSITION_OFFSET, c.d_model)),
        position_offset=POSITION_OFFSET,
        norm=load.layer_norm(f"{half.name}.layernorm_embedding", c.d_model, EPS),
    )


def _attention(c: BartConfig, load: Loader, half: Half) -> AttentionLoader:
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}
    dim = c.d_model // half.heads
    return AttentionLoader(load, names, c.d_model, half.heads, dim, scale=dim**-0.5, bias=True)


def _norm(c: BartConfig, load: Loader, name: str) -> LayerNorm:
    return load.layer_norm(name, c.d_model, EPS)


def _mlp(c: BartConfig, load: Loader, half: Half, name: str) -> PlainMLP:
    up = load.linear(f"{name}.fc1", (half.ffn_dim, c.d_model), ROWS, True)
    return PlainMLP(up, load.linear(f"{name}.fc2", (c.d_model, half.ffn_dim), COLUMNS, True), c.activation)


def _encoder_layer(c: BartConfig, load: Loader, i: int) -> PostNormLayer:
    name = f"{c.encoder.name}.layers.{i}"
    # Its keys and values lie in the pages of the decoder's first layer, or in a layer of their own.
    index = 0 if c.encoder.heads == c.decoder.heads else c.decoder.layers
    attention = _attention(c, load, c.encoder)
    return PostNormLayer(
        attention_norm=_norm(c, load, f"{name}.self_attn_layer_norm"),
        attention=attention.self_attention(f"{name}.self_attn", index, sight=Sight.WHOLE),
        mlp_norm=_norm(c, load, f"{name}.final_layer_norm"),
        mlp=_mlp(c, load, c.encoder, name),
    )


def _decoder_layer(c: BartConfig, load: Loader, i: int) -> CrossLayer:
    name = f"{c.decoder.name}.layers.{i}"
    attention = _attention(c, load, c.decoder)
    return CrossLayer(
        attention_norm=_norm(c, load, f"{name}.self_attn_layer_norm"),
        attention=attention.self_attention(f"{name}.self_attn", i),
        cross_norm=_norm(c, load, f"{name}.encoder_attn_layer_norm"),
        cross=attention.cross_attention(f"{name}.encoder_attn", i),
        mlp_norm=_norm(c, load, f"{name}.final_layer_norm"),
        mlp=_mlp(c, load, c.decoder, name),
        norm_first=False,
    )


FAMILY = Family(
    name="bart",
    hf=("bart",),
    config=config_of,
    build=build,
    ignored=(  # copies of each other
        "*shared.weight",
        "*encoder.embed_tokens.weight",
        "*decoder.embed_tokens.weight",
    ),
    encoder_decoder=True,
)
