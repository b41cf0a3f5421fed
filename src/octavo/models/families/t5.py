"""T5, FLAN-T5 and mT5: relative bias by buckets of distance instead of positions (Raffel et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import F32, Activation, Scaling, Sight
from octavo.models.config import ACTIVATIONS, ConfigReader
from octavo.models.layers import COLUMNS, MLP, ROWS, DecoderLayer, Embedding, GatedMLP, RMSNorm
from octavo.models.loader import Loader, Order
from octavo.models.parts_cross import (
    AttentionLoader,
    CrossLayer,
    EncoderDecoderModel,
    EncoderDecoderStack,
)
from octavo.models.parts_gpt import PlainMLP
from octavo.models.registry import Family

LENGTH = 512
"""Where config.json has no n_positions: what the published models were trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Config:
    """Names follow config.json. length: of inputs and of answers where the user names none; distances
    have no end.

    scaled: the logits are, by d_model^-0.5 (T5 1.0).
    """

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    num_buckets: int
    max_distance: int
    eps: float
    gated: bool
    activation: Activation
    scaled: bool
    length: int


def config_of(checkpoint: Checkpoint) -> T5Config:
    read = ConfigReader.of(checkpoint)
    kind = str(read.get("feed_forward_proj", "relu"))
    gated, name = kind.startswith("gated-"), kind.removeprefix("gated-")
    if name not in ACTIVATIONS:
        raise read.error("feed_forward_proj", f"= {kind!r} is not supported")
    layers = read.integer("num_layers")
    tied = read.flag("tie_word_embeddings", True)
    config = T5Config(
        vocab_size=read.integer("vocab_size"),
        d_model=read.integer("d_model"),
        d_kv=read.integer("d_kv"),
        d_ff=read.integer("d_ff"),
        num_layers=layers,
        num_decoder_layers=read.integer("num_decoder_layers", layers),
        num_heads=read.integer("num_heads"),
        num_buckets=read.integer("relative_attention_num_buckets", 32),
        max_distance=read.integer("relative_attention_max_distance", 128),
        eps=read.positive("layer_norm_epsilon", 1e-6),
        gated=gated,
        activation=Activation.GELU_TANH if kind == "gated-gelu" else ACTIVATIONS[name],
        scaled=checkpoint.architecture == "t5" and read.flag("scale_decoder_outputs", tied),
        length=read.integer("n_positions", LENGTH),
    )
    for field in ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads"):
        if getattr(config, field) < 1:
            raise read.error(field, f"must be positive, not {getattr(config, field)}")
    if config.num_buckets < 4 or config.num_buckets % 4 or config.max_distance <= config.num_buckets // 2:
        raise read.error("relative_attention_num_buckets", f"= {config.num_buckets} leaves distances none")
    return config


def buckets(distances: Order, bidirectional: bool, count: int, max_distance: int) -> Order:
    """The bucket of each distance (key position - query position), section 2.1 of the paper.

    The first half of the buckets has one distance each, the others grow by a constant factor until
    max_distance. Bidirectional: half of the buckets for distances ahead.
    """
    ahead = np.zeros_like(distances)
    if bidirectional:
        count //= 2
        ahead = (distances > 0) * count
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    exact = count // 2
    ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact))
    steps = ratio / np.float32(math.log(max_distance / exact)) * np.float32(count - exact)
    large = np.minimum(exact + steps.astype(np.int64), count - 1)
    return ahead + np.where(far < exact, far, large)


def build(c: T5Config, load: Loader) -> EncoderDecoderModel:
    table = load.table("shared", (c.vocab_size, c.d_model))
    embedding = Embedding(table)
    behind, around = _bias(c, load, "decoder"), _bias(c, load, "encoder")
    stack = EncoderDecoderStack(
        source=embedding,
        encoder=[_encoder_layer(c, load, i, around) for i in range(c.num_layers)],
        encoder_norm=_norm(c, load, "encoder.final_layer_norm"),
        embedding=embedding,
        layers=[_decoder_layer(c, load, i, behind) for i in range(c.num_decoder_layers)],
        norm=_norm(c, load, "decoder.final_layer_norm"),
        # Files say that the head is tied also where it is not: it is if they hold none.
        head=load.head("lm_head", table, not load.has("lm_head.weight")),
        scaling=Scaling(c.d_model**-0.5 if c.scaled else 1.0),
    )
    length = max(c.length, load.context or 0)
    return EncoderDecoderModel(stack, length, length)


def _bias(c: T5Config, load: Loader, side: str) -> F32:
    """[heads, 2 D + 1] of distances -D..D, from the table that the first layer keeps for all."""
    name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    table = load.matrix(name, (c.num_buckets, c.num_heads))
    distances = np.arange(-c.max_distance, c.max_distance + 1)
    found = buckets(distances, side == "encoder", c.num_buckets, c.max_distance)
    return np.ascontiguousarray(table[found].T, np.float32)


def _attention(c: T5Config, load: Loader) -> AttentionLoader:
    names = {"q": "q", "k": "k", "v": "v", "out": "o"}
    return AttentionLoader(load, names, c.d_model, c.num_heads, c.d_kv, scale=1.0, bias=False)


def _norm(c: T5Config, load: Loader, name: str) -> RMSNorm:
    return load.rms_norm(name, c.d_model, c.eps)


def _mlp(c: T5Config, load: Loader, name: str) -> MLP:
    down = load.linear(f"{name}.wo", (c.d_model, c.d_ff), COLUMNS)
    if c.gated:
        return GatedMLP(load.gated(f"{name}.wi_0", f"{name}.wi_1", (c.d_ff, c.d_model)), down, c.activation)
    return PlainMLP(load.linear(f"{name}.wi", (c.d_ff, c.d_model), ROWS), down, c.activation)


def _encoder_layer(c: T5Config, load: Loader, i: int, bias: F32) -> DecoderLayer:
    name = f"encoder.block.{i}.layer"
    attention = _attention(c, load).self_attention(
        f"{name}.0.SelfAttention", 0, sight=Sight.WHOLE, relative_bias=bias
    )
    return DecoderLayer(
        attention_norm=_norm(c, load, f"{name}.0.layer_norm"),
        attention=attention,
        mlp_norm=_norm(c, load, f"{name}.1.layer_norm"),
        mlp=_mlp(c, load, f"{name}.1.DenseReluDense"),
    )


def _decoder_layer(c: T5Config, load: Loader, i: int, bias: F32) -> CrossLayer:
    name = f"decoder.block.{i}.layer"
    return CrossLayer(
        attention_norm=_norm(c, load, f"{name}.0.layer_norm"),
        attention=_attention(c, load).self_attention(f"{name}.0.SelfAttention", i, relative_bias=bias),
        cross_norm=_norm(c, load, f"{name}.1.layer_norm"),
        cross=_attention(c, load).cross_attention(f"{name}.1.EncDecAttention", i),
        mlp_norm=_norm(c, load, f"{name}.2.layer_norm"),
        mlp=_mlp(c, load, f"{name}.2.DenseReluDense"),
        norm_first=True,
    )


FAMILY = Family(
    name="t5",
    hf=("t5", "mt5"),
    config=config_of,
    build=build,
    ignored=(
        "encoder.embed_tokens.weight",  # copies of shared.weight
        "decoder.embed_tokens.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",  # never used
    ),
    encoder_decoder=True,
)
