"""DeepSeek-V2: latent attention, and experts chosen by group beside shared ones (DeepSeek-AI 2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import AttentionSpec, Rotary, Routing
from octavo.models.config import ConfigReader, read_hf
from octavo.models.layers import WHOLE, DecoderLayer, heads_in, heads_out
from octavo.models.loader import Loader, Piece
from octavo.models.parts import DecoderModel, gated_mlp, llama_model
from octavo.models.parts_latent import LatentAttention
from octavo.models.parts_moe import MoEConfig, moe
from octavo.models.registry import Family
from octavo.models.rotary import yarn_factor, yarn_mscale

LATENT_EPS = 1e-6
"""Of the norms inside attention, whatever the config says of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekConfig(MoEConfig):
    """q_rank, kv_rank: width of the latents; q_rank 0: none. head_dim is nope_dim + rope_dim."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    routing: Routing
    shared_experts: int
    router_bias: bool = False


def config_of(checkpoint: Checkpoint) -> DeepSeekConfig:
    read = ConfigReader.of(checkpoint)
    method, groups = read.get("topk_method", "greedy"), read.integer("n_group", 1)
    if method not in ("greedy", "group_limited_greedy"):
        raise read.error("topk_method", f"= {method!r} is not supported")
    read.refuse("scoring_func", ("softmax",))
    read.refuse("norm_topk_prob", (False,))
    limited = method == "group_limited_greedy"
    routing = Routing(
        groups=groups if limited else 1,
        top_groups=read.integer("topk_group", 1) if limited else 1,
        scale=read.number("routed_scaling_factor", 1.0),
    )
    return deepseek_config(checkpoint, routing=routing, renormalize=False, interleaved=True)


def deepseek_config(
    checkpoint: Checkpoint, routing: Routing, renormalize: bool, interleaved: bool, router_bias: bool = False
) -> DeepSeekConfig:
    read = ConfigReader.of(checkpoint)
    nope, rope_dim = read.integer("qk_nope_head_dim"), read.integer("qk_rope_head_dim")
    rope = read.rope(rope_dim, read.integer("max_position_embeddings", 2048))
    scale, sharpen = (nope + rope_dim) ** -0.5, rope.scaling.get("mscale_all_dim")
    if rope.scaling.get("rope_type", "default") != "default" and sharpen:
        # YaRN's temperature, of q and k each, also for the part of them that does not rotate.
        scale *= yarn_mscale(yarn_factor(rope.scaling), sharpen) ** 2
    bias = read.flag("attention_bias")
    config = read_hf(
        checkpoint,
        head_dim=nope + rope_dim,
        rope=replace(rope, dim=rope_dim, interleaved=interleaved),
        attention_scale=scale,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=read.flag("mlp_bias"),
    )
    experts, chosen = read.integer("n_routed_experts", 64), read.integer("num_experts_per_tok", 8)
    # What follows would choose experts that are not there, or fewer than a token is to have.
    if experts % routing.groups or routing.top_groups > routing.groups:
        raise read.error("n_group", f"= {routing.groups} does not fit {experts} experts and topk_group")
    if chosen > experts // routing.groups * routing.top_groups:
        raise read.error("num_experts_per_tok", f"= {chosen} exceeds the experts of topk_group groups")
    return DeepSeekConfig.of(
        config,
        num_experts=experts,
        top_k=chosen,
        expert_size=read.integer("moe_intermediate_size"),
        renormalize=renormalize,
        dense_layers=frozenset(range(read.integer("first_k_dense_replace", 0))),
        q_rank=read.get("q_lora_rank", 0),
        kv_rank=read.integer("kv_lora_rank"),
        nope_dim=nope,
        rope_dim=rope_dim,
        v_dim=read.integer("v_head_dim"),
        routing=routing,
        shared_experts=read.integer("n_shared_experts", 0),
        router_bias=router_bias,
    )


def build(c: DeepSeekConfig, load: Loader) -> DecoderModel:
    rotary = load.rotary(c.rope, c.max_position)
    assert rotary is not None  # config_of always gives one
    return llama_model(c, load, [_layer(c, load, i, rotary) for i in range(c.num_layers)])


def _layer(c: DeepSeekConfig, load: Loader, i: int, rotary: Rotary) -> DecoderLayer:
    name = f"model.layers.{i}"
    if i in c.dense_layers:
        mlp: Any = gated_mlp(c, load, f"{name}.mlp", c.intermediate_size)
    else:
        routing, shared = c.routing, c.shared_experts * c.expert_size
        if c.router_bias:
            bias = load.vector(f"{name}.mlp.gate.e_score_correction_bias", c.num_experts)
            routing = replace(routing, bias=bias)
        beside = gated_mlp(c, load, f"{name}.mlp.shared_experts", shared) if shared else None
        mlp = replace(moe(c, load, f"{name}.mlp"), routing=routing, shared=beside)
    return DecoderLayer(
        attention_norm=load.rms_norm(f"{name}.input_layernorm", c.hidden_size, c.norm_eps),
        attention=_attention(c, load, i, rotary),
        mlp_norm=load.rms_norm(f"{name}.post_attention_layernorm", c.hidden_size, c.norm_eps),
        mlp=mlp,
    )


def _attention(c: DeepSeekConfig, load: Loader, i: int, rotary: Rotary) -> LatentAttention:
    name, hidden, heads = f"model.layers.{i}.self_attn", c.hidden_size, c.num_heads
    q_width, q_rows = c.q_rank or hidden, np.arange(heads * c.head_dim).reshape(heads, c.head_dim)
    q_nope, q_rope = load.split(
        f"{name}.{'q_b_proj' if c.q_rank else 'q_proj'}",
        (q_rows.size, q_width),
        [
            Piece(q_rows[:, : c.nope_dim], heads_out(c.nope_dim)),
            Piece(q_rows[:, c.nope_dim :], heads_out(c.rope_dim)),
        ],
    )
    kv_rows = np.arange(c.kv_rank + c.rope_dim)
    both = [Piece(kv_rows[: c.kv_rank], WHOLE), Piece(kv_rows[c.kv_rank :], WHOLE)]  # of all heads
    latent, k_rope = load.split(f"{name}.kv_a_proj_with_mqa", (kv_rows.size, hidden), both, c.qkv_bias)
    each = np.arange(heads * (c.nope_dim + c.v_dim)).reshape(heads, -1)
    absorb = [Piece(rows[: c.nope_dim], heads_out(c.kv_rank), transposed=True) for rows in each]
    expand = [Piece(rows[c.nope_dim :], heads_out(c.v_dim)) for rows in each]
    of_heads = load.split(f"{name}.kv_b_proj", (each.size, c.kv_rank), absorb + expand)
    spec = AttentionSpec(heads, 1, c.kv_rank + c.rope_dim, c.kv_rank, c.attention_scale or 0.0, latent=True)
    return LatentAttention(
        index=i,
        q_down=load.linear(f"{name}.q_a_proj", (c.q_rank, hidden), WHOLE, c.qkv_bias) if c.q_rank else None,
        q_norm=load.rms_norm(f"{name}.q_a_layernorm", c.q_rank, LATENT_EPS) if c.q_rank else None,
        q_nope=q_nope,
        q_rope=q_rope,
        latent=latent,
        latent_norm=load.rms_norm(f"{name}.kv_a_layernorm", c.kv_rank, LATENT_EPS),
        k_rope=k_rope,
        absorb=of_heads[:heads],
        expand=of_heads[heads:],
        out=load.linear(f"{name}.o_proj", (hidden, heads * c.v_dim), heads_in(c.v_dim), c.out_bias),
        spec=spec,
        rotary=rotary,
    )


FAMILY = Family(name="deepseek_v2", hf=("deepseek_v2",), config=config_of, build=build)
