"""BLOOM: ALiBi instead of positions, a norm on the embedding, qkv grouped by head (BigScience 2022)."""

from __future__ import annotations

from dataclasses import replace

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Activation
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf
from octavo.models.layers import DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import DecoderModel
from octavo.models.parts_gpt import alibi_slopes, attention_of, fused_qkv, plain_mlp, plain_model, ungroup
from octavo.models.registry import Family

NAMES = {
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "transformer.h.{i}.input_layernorm": "blk.{i}.attn_norm",
    "transformer.h.{i}.self_attention.query_key_value": "blk.{i}.attn_qkv",
    "transformer.h.{i}.self_attention.dense": "blk.{i}.attn_output",
    "transformer.h.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
    "transformer.h.{i}.mlp.dense_h_to_4h": "blk.{i}.ffn_up",
    "transformer.h.{i}.mlp.dense_4h_to_h": "blk.{i}.ffn_down",
}


def config_of(checkpoint: Checkpoint) -> DecoderConfig:
    if checkpoint.kind == "gguf":
        return read_gguf(
            checkpoint,
            rope=None,
            activation=Activation.GELU_TANH,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
        )
    read = ConfigReader.of(checkpoint)
    read.refuse("apply_residual_connection_post_layernorm", (False,))
    hidden = read.integer("hidden_size", read.get("n_embed"))
    heads = read.integer("n_head", read.get("num_attention_heads"))
    return DecoderConfig(
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_layers=read.integer("n_layer", read.get("num_hidden_layers")),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // max(heads, 1),
        max_position=read.integer("seq_length", 2048),  # trained on; ALiBi itself has no end
        norm_eps=read.number("layer_norm_epsilon", 1e-5),
        activation=Activation.GELU_TANH,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
    )


def build(c: DecoderConfig, load: Loader) -> DecoderModel:
    words = "transformer.word_embeddings"
    layers = [_layer(c, load, i) for i in range(c.num_layers)]
    norm = load.layer_norm(f"{words}_layernorm", c.hidden_size, c.norm_eps)
    return plain_model(c, load, words, layers, "transformer.ln_f", norm=norm)


def _layer(c: DecoderConfig, load: Loader, i: int) -> DecoderLayer:
    name, hidden = f"transformer.h.{i}", c.hidden_size
    # GGUF files hold all q, all k, all v already.
    order = ungroup(c.num_heads, (1, 1, 1), c.head_dim) if load.kind == "hf" else None
    qkv = fused_qkv(c, load, f"{name}.self_attention.query_key_value", order)
    plain = attention_of(c, load, i, qkv, f"{name}.self_attention.dense")
    return DecoderLayer(
        attention_norm=load.layer_norm(f"{name}.input_layernorm", hidden, c.norm_eps),
        attention=replace(plain, spec=replace(plain.spec, alibi_slopes=alibi_slopes(c.num_heads))),
        mlp_norm=load.layer_norm(f"{name}.post_attention_layernorm", hidden, c.norm_eps),
        mlp=plain_mlp(c, load, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h"),
    )


FAMILY = Family(name="bloom", hf=("bloom",), gguf=("bloom",), names=NAMES, config=config_of, build=build)
