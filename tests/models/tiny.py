"""Tiny configurations of every family: TINY[family][variant], arguments of a transformers config.

Every way through a family's build() needs a variant. "model_type" stands where it is not the family's first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]

LLAMA: Config = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
GPT: Config = {"vocab_size": 160, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}
WINDOW: Config = {"sliding_window": 24}
QWEN_WINDOW: Config = WINDOW | {"use_sliding_window": True}
TIED: Config = {"tie_word_embeddings": True}
UNTIED: Config = {"tie_word_embeddings": False}


def variants(base: Config, **changes: Config) -> dict[str, Config]:
    """A family's variants: base with each one's changes."""
    return {name: base | changed for name, changed in changes.items()}


def rope(kind: str, theta: float, **more: Any) -> Config:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


LLAMA3: Config = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
PHI3_FACTORS: Config = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
    "original_max_position_embeddings": 32,
}
GEMMA3_ROPES: Config = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
DEEPSEEK: Config = LLAMA | {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "routed_scaling_factor": 2.0,
}
YARN: Config = {"original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}
QWEN_MOE: Config = LLAMA | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FALCON: Config = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_hidden_size": 96,
    "activation": "gelu_pytorch_tanh",
}
GROUPED_FALCON: Config = {"new_decoder_architecture": True, "num_kv_heads": 2}
BART: Config = {
    "vocab_size": 160,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 256,
}
OPT: Config = {
    "vocab_size": 160,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "word_embed_proj_dim": 64,
}
NEOX: Config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
T5: Config = {"vocab_size": 160, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
FAR: Config = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}

TINY: Mapping[str, Mapping[str, Config]] = {
    "llama": variants(
        LLAMA,
        plain={},
        tied_biased={"attention_bias": True, "mlp_bias": True} | TIED,
        llama3=rope("llama3", 500.0, factor=8.0, **LLAMA3),
        linear=rope("linear", 500.0, factor=2.0),
        yarn=rope("yarn", 500.0, factor=4.0, original_max_position_embeddings=64),
        dynamic=rope("dynamic", 500.0, factor=2.0),
    ),
    "qwen2": variants(LLAMA, plain={}, tied_window=QWEN_WINDOW | {"max_window_layers": 1} | TIED),
    "qwen3": variants(
        LLAMA | {"head_dim": 32},
        plain={},
        biased={"attention_bias": True} | TIED,
        window=QWEN_WINDOW | {"max_window_layers": 1},
    ),
    "mistral": variants(
        LLAMA | {"num_key_value_heads": 1, "head_dim": 32}, window=WINDOW, full={"sliding_window": None}
    ),
    "smollm3": variants(
        LLAMA | {"no_rope_layer_interval": 2, "num_hidden_layers": 4, "pad_token_id": 0},
        plain={},
        window=QWEN_WINDOW | {"mlp_bias": True},
    ),
    "phi3": variants(
        LLAMA | {"original_max_position_embeddings": 256, "pad_token_id": 0},
        window=WINDOW,
        long={"original_max_position_embeddings": 32}
        | rope("longrope", 10000.0, partial_rotary_factor=0.75, **PHI3_FACTORS),
    ),
    "olmo2": variants(LLAMA, plain={}, biased={"attention_bias": True, "num_key_value_heads": 4}),
    "gemma": variants(LLAMA | {"num_key_value_heads": 1, "head_dim": 32}, plain={}),
    "gemma2": variants(
        LLAMA | WINDOW | {"head_dim": 32, "query_pre_attn_scalar": 24},
        capped={"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        uncapped={"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3_text": variants(
        LLAMA
        | WINDOW
        | {"num_hidden_layers": 7, "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 24},
        plain={},
        scaled=UNTIED | {"final_logit_softcapping": 3.0, "rope_parameters": GEMMA3_ROPES},
    ),
    "starcoder2": variants(LLAMA, window=WINDOW, unbiased={"use_bias": False} | UNTIED),
    "mixtral": variants(LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2}, plain={}, window=WINDOW),
    "qwen2_moe": variants(
        QWEN_MOE | {"shared_expert_intermediate_size": 80},
        plain={},
        window=QWEN_WINDOW | {"max_window_layers": 3},
        sparse={"norm_topk_prob": True, "decoder_sparse_step": 2, "num_hidden_layers": 4},
    ),
    "qwen3_moe": variants(
        QWEN_MOE | {"head_dim": 32, "norm_topk_prob": True},
        plain={},
        window=QWEN_WINDOW | {"norm_topk_prob": False, "mlp_only_layers": [1], "attention_bias": True},
    ),
    "deepseek_v2": variants(
        DEEPSEEK,
        lite={"q_lora_rank": None},
        grouped={
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
        },
    ),
    "deepseek_v3": variants(
        DEEPSEEK | {"n_group": 4, "topk_group": 2},
        plain={},
        yarn={"rope_interleave": False, "norm_topk_prob": False} | rope("yarn", 10000.0, factor=4.0, **YARN),
    ),
    "gpt2": variants(
        GPT,
        plain={},
        by_layer={"scale_attn_by_inverse_layer_idx": True, "n_inner": 96} | UNTIED,
        unscaled={"scale_attn_weights": False},
    ),
    "gpt_bigcode": variants(GPT, multi_query={}, multi_head={"multi_query": False, "n_inner": 96}),
    "gpt_neox": variants(
        NEOX,
        parallel={},
        serial={"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"},
    ),
    "falcon": {
        "7b": FALCON | {"activation": "gelu"},
        "40b": FALCON | GROUPED_FALCON,
        "11b": FALCON | GROUPED_FALCON | {"num_ln_in_parallel_attn": 1},
        "rw": FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    },
    "bloom": variants(
        {"vocab_size": 160, "hidden_size": 96, "n_layer": 3, "n_head": 4}, plain={}, six_heads={"n_head": 6}
    ),
    "opt": variants(
        OPT,
        pre={},
        post={"do_layer_norm_before": False, "word_embed_proj_dim": 32, "enable_bias": False},
    ),
    "bart": variants(
        BART,
        plain={},
        uneven={"encoder_attention_heads": 2, "scale_embedding": True, "activation_function": "silu"}
        | UNTIED,
    ),
    "t5": variants(
        T5,
        plain={},
        v1_1={"d_kv": 24, "num_decoder_layers": 3, "feed_forward_proj": "gated-gelu", "num_heads": 3}
        | UNTIED,
        mt5=FAR | {"model_type": "mt5", "feed_forward_proj": "gated-gelu"},
    ),
}

VARIANTS = [(family, variant) for family, found in TINY.items() for variant in found]
"""(family, variant) of each."""
