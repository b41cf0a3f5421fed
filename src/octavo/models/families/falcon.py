"""Falcon: 7B with one KV head, 40B with groups, RW with ALiBi (Almazrouei et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Activation, Rotary
from octavo.models.config import ConfigReader, DecoderConfig, read_gguf, read_hf
from octavo.models.families.bloom import NAMES as BLOOM_NAMES
from octavo.models.layers import Attention, Block, DecoderLayer
from octavo.models.loader import Loader
from octavo.models.parts import DecoderModel
from octavo.models.parts_gpt import (
    ParallelLayer,
    alibi_slopes,
    attention_of,
    fused_qkv,
    plain_mlp,
    plain_model,
    ungroup,
)
from octavo.models.registry import Family

NAMES = BLOOM_NAMES | {
    "transformer.h.{i}.ln_mlp": "blk.{i}.attn_norm",
    "transformer.h.{i}.ln_attn": "blk.{i}.attn_norm_2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconConfig(DecoderConfig):
    """parallel: attention and MLP side by side. two_norms: each with its own norm. alibi: no rotation."""

    parallel: bool
    two_norms: bool
    alibi: bool


def config_of(checkpoint: Checkpoint) -> FalconConfig:
    read = ConfigReader.of(checkpoint)
    if checkpoint.kind == "gguf":
        config = read_gguf(checkpoint, activation=Activation.GELU)
        two = "blk.0.attn_norm_2.weight" in checkpoint.tensors
        return FalconConfig.of(config, parallel=True, two_norms=two, alibi=False)
    heads = read.integer("num_attention_heads", read.get("n_head"))
    new, hidden = read.flag("new_decoder_architecture"), read.integer("hidden_size")
    kv_heads = 1 if read.flag("multi_query", True) else heads
    if new:
        kv_heads = read.integer("num_kv_heads", heads)
    bias, alibi = read.flag("bias"), read.flag("alibi")
    head_dim, longest = hidden // max(heads, 1), read.integer("max_position_embeddings", 2048)
    config = read_hf(
        checkpoint,
        num_heads=heads,
        num_kv_heads=kv_heads,
        num_layers=read.integer("num_hidden_layers", read.get("n_layer")),
        intermediate_size=read.integer("ffn_hidden_size", 4 * hidden),
        activation=read.activation("activation", "gelu"),
        norm_eps=read.number("layer_norm_epsilon", 1e-5),
        rope=None if alibi else read.rope(head_dim, longest),
        tie_word_embeddings=read.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )
    parallel = read.flag("parallel_attn", True)
    norms = read.integer("num_ln_in_parallel_attn", 2 if new else 1)
    if new and not parallel:
        raise read.error("parallel_attn", "must be true where new_decoder_architecture is")
    return FalconConfig.of(config, parallel=parallel, two_norms=new and norms == 2, alibi=alibi)


def build(c: FalconConfig, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    layers = [_layer(c, load, i, rotary) for i in range(c.num_layers)]
    return plain_model(c, load, "transformer.word_embeddings", layers, "transformer.ln_f")


def _layer(c: FalconConfig, load: Loader, i: int, rotary: Rotary | None) -> Block:
    name, hidden = f"transformer.h.{i}", c.hidden_size
    attention = _attention(c, load, i, rotary)
    mlp = plain_mlp(c, load, f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
    if c.two_norms:
        before, before_mlp = (load.layer_norm(f"{name}.ln_{x}", hidden, c.norm_eps) for x in ("attn", "mlp"))
        return ParallelLayer(before, attention, before_mlp, mlp)
    norm = load.layer_norm(f"{name}.input_layernorm", hidden, c.norm_eps)
    if c.parallel:
        return ParallelLayer(norm, attention, None, mlp)
    after = load.layer_norm(f"{name}.post_attention_layernorm", hidden, c.norm_eps)
    return DecoderLayer(norm, attention, after, mlp)


def _attention(c: FalconConfig, load: Loader, i: int, rotary: Rotary | None) -> Attention:
    name = f"transformer.h.{i}.self_attention"
    group = c.num_heads // c.num_kv_heads
    # A group is a KV head, its queries before it; GGUF files hold all q, all k, all v already.
    order = ungroup(c.num_kv_heads, (group, 1, 1), c.head_dim) if load.kind == "hf" else None
    qkv = fused_qkv(c, load, f"{name}.query_key_value", order)
    plain = attention_of(c, load, i, qkv, f"{name}.dense", rotary)
    if not c.alibi:
        return plain
    # Added before the scores are scaled, unlike BLOOM's.
    slopes = alibi_slopes(c.num_heads) * plain.spec.scale
    return replace(plain, spec=replace(plain.spec, alibi_slopes=slopes))


FAMILY = Family(
    name="falcon",
    hf=("falcon", "RefinedWeb", "RefinedWebModel"),
    gguf=("falcon",),
    names=NAMES,
    config=config_of,
    build=build,
)
