"""Write a transformers folder as a GGUF file, with the names and row orders that converters use.

Names come from the gguf package's own tables; the rearrangements are those of llama.cpp's converter.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray[Any, Any]


def write_gguf(folder: Path, path: Path, arch: str, kinds: dict[str, str] | None = None) -> Path:
    """folder's model as a GGUF file of the architecture arch.

    Args:
        kinds: part of a tensor's GGUF name -> the format it is quantized to; others stay F32.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, arch)
    _metadata(writer, config)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    layers = config.get("num_hidden_layers") or config.get("n_layer")
    names = gguf.get_tensor_name_map(number, layers)
    tensors = _stack_experts(load_file(folder / "model.safetensors"))
    for name, tensor in {**tensors, **_rope_tensors(config)}.items():
        stored = gguf_name(names, name) or name
        data = _rearranged(name, tensor, arch, config)
        kind = next((k for part, k in (kinds or {}).items() if part in stored), None)
        if kind is None or data.ndim == 1:
            writer.add_tensor(stored, np.ascontiguousarray(data, np.float32))
        else:
            type_ = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(stored, gguf.quantize(np.ascontiguousarray(data), type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(names: gguf.TensorNameMap, name: str) -> str | None:
    """GGUF's name of a transformers tensor. BLOOM's converter strips the prefix first."""
    for given in (name, name.removeprefix("transformer.")):
        found: str | None = names.get_name(given, try_suffixes=(".weight", ".bias"))
        if found is not None:
            return found
    return None


def _metadata(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    hidden = c.get("hidden_size") or c["n_embd"]
    heads = c.get("num_attention_heads") or c["n_head"]
    head_dim = c.get("head_dim") or hidden // heads
    inner = c.get("ffn_hidden_size") or c.get("n_inner") or c.get("intermediate_size") or 4 * hidden
    kv_heads = c.get("num_kv_heads") if c.get("new_decoder_architecture") else c.get("num_key_value_heads")
    if c.get("multi_query") and not c.get("new_decoder_architecture"):
        kv_heads = 1
    w.add_vocab_size(c["vocab_size"])
    w.add_context_length(c.get("max_position_embeddings") or c.get("n_positions") or 2048)
    w.add_embedding_length(hidden)
    w.add_block_count(c.get("num_hidden_layers") or c["n_layer"])
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads or heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    if "rms_norm_eps" in c:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    else:
        w.add_layer_norm_eps(c.get("layer_norm_epsilon") or c["norm_epsilon"])
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    for key, add in (
        ("attn_logit_softcapping", w.add_attn_logit_softcapping),
        ("final_logit_softcapping", w.add_final_logit_softcapping),
        ("num_experts_per_tok", w.add_expert_used_count),
        ("moe_intermediate_size", w.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", w.add_expert_shared_feed_forward_length),
    ):
        if c.get(key):
            add(c[key])
    experts = c.get("num_local_experts") or c.get("num_experts")
    if experts:
        w.add_expert_count(experts)
    _rope_metadata(w, c, head_dim)


def _rope_metadata(w: gguf.GGUFWriter, c: dict[str, Any], head_dim: int) -> None:
    rope = c.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if not rope:
        return
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(original)
        ratio = c["max_position_embeddings"] / original
        w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(ratio) / np.log(original))))


def _rope_tensors(c: dict[str, Any]) -> dict[str, Array]:
    rope = c.get("rope_parameters") or {}
    kind = rope.get("rope_type")
    if kind == "longrope":
        return {
            f"rope_factors_{side}.weight": np.array(rope[f"{side}_factor"], np.float32)
            for side in ("long", "short")
        }
    if kind != "llama3":
        return {}
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def _stack_experts(tensors: dict[str, Array]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = defaultdict(dict)
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if found:
            experts[f"{found[1]}.{found[3]}"][int(found[2])] = tensor
        else:
            out[name] = tensor
    return out | {name: np.stack([e[i] for i in range(len(e))]) for name, e in experts.items()}


def _rearranged(name: str, x: Array, arch: str, c: dict[str, Any]) -> Array:
    if arch == "llama" and re.search(r"\.(q|k)_proj\.", name):
        heads = c["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
        return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return x + 1
    if arch == "gpt2" and x.ndim == 2 and re.search(r"\.(c_attn|c_proj|c_fc)\.", name):
        return x.T
    if "query_key_value" in name:
        heads = c.get("num_attention_heads") or c["n_head"]
        groups = c.get("num_kv_heads", heads) if c.get("new_decoder_architecture") else heads
        groups = 1 if c.get("multi_query") and not c.get("new_decoder_architecture") else groups
        rows = x.reshape(groups, heads // groups + 2, -1, *x.shape[1:])
        return np.concatenate(
            [part.reshape(-1, *x.shape[1:]) for part in (rows[:, :-2], rows[:, -2], rows[:, -1])]
        )
    return x
