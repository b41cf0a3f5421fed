"""Small files that are right: models of two layers or less, and tokenizers of every kind."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from safetensors.numpy import save
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

HIDDEN, HEADS, KV_HEADS, INNER, WORDS = 32, 2, 1, 32, 48
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": WORDS,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
FAMILIES: tuple[dict[str, Any], ...] = (
    {},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32}},
    {"model_type": "mistral", "sliding_window": 16},
    {"model_type": "qwen2", "layer_types": ["full_attention"]},
)  # fmt: skip
"""Changes of CONFIG."""


def weights(config: dict[str, Any]) -> dict[str, Any]:
    """Random tensors by their names in a folder."""
    rng = np.random.default_rng(0)
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    }  # fmt: skip
    found = {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}
    if config["model_type"] == "qwen2":
        found |= {f"model.layers.0.self_attn.{n}_proj.bias": (HIDDEN if n == "q" else kv,) for n in "qkv"}
    found |= {"model.embed_tokens.weight": (WORDS, HIDDEN), "lm_head.weight": (WORDS, HIDDEN)}
    found |= {"model.norm.weight": (HIDDEN,)}
    return {name: rng.standard_normal(shape).astype(np.float16) * 0.3 for name, shape in found.items()}


def folder(changes: dict[str, Any]) -> dict[str, bytes]:
    """The files of a model."""
    config = CONFIG | changes
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": tokenizer_files()["words"]["tokenizer.json"],
        "tokenizer_config.json": json.dumps({"eos_token": "w2", "chat_template": CHAT}).encode(),
        "generation_config.json": json.dumps({"eos_token_id": [2], "temperature": 0.5}).encode(),
        "model.safetensors": save(weights(config)),
    }


@cache
def model_gguf(path: Path, kind: str, spm: bool) -> bytes:
    """A whole model in one file.

    Args:
        path: a place for it to be written to.
        kind: the format of its matrices, such as "Q4_0".
        spm: its tokenizer is SentencePiece's; else byte-level.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (("context_length", 64), ("embedding_length", HIDDEN), ("block_count", 1),
                        ("feed_forward_length", INNER), ("head_count", HEADS), ("head_count_kv", KV_HEADS),
                        ("rope_dimension_count", HIDDEN // HEADS), ("vocab_size", WORDS)):  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    _add_tokenizer(writer, spm)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    type_ = gguf.GGMLQuantizationType[kind]
    for name, tensor in weights(CONFIG).items():
        stored = names.get_name(name, try_suffixes=(".weight",)) or name
        if tensor.ndim == 1:
            writer.add_tensor(stored, tensor.astype(np.float32))
        else:
            writer.add_tensor(stored, gguf.quantize(tensor.astype(np.float32), type_), raw_dtype=type_)
    _written(writer)
    return path.read_bytes()


def _add_tokenizer(writer: gguf.GGUFWriter, spm: bool) -> None:
    words = ["<unk>", "<s>", "</s>", *(chr(97 + i) for i in range(26)), "ab", "cd", "abcd"]
    words += [f"<x{i}>" for i in range(WORDS - len(words))]
    types = [2, 3, 3, *(1 for _ in range(29)), *(4 for _ in words[32:])]
    writer.add_tokenizer_model("llama" if spm else "gpt2")
    writer.add_token_list(words)
    writer.add_token_types(types)
    if spm:
        writer.add_token_scores([float(-i) for i in range(len(words))])
    else:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(["a b", "c d", "ab cd"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT)


def small_gguf(path: Path) -> bytes:
    """Every type of metadata, two tensors, no model."""
    writer = gguf.GGUFWriter(path, "toy")
    for kind, value in (("uint8", 200), ("int8", -5), ("uint16", 60_000), ("int16", -3), ("uint32", 7),
                        ("int32", -2), ("uint64", 1 << 63), ("int64", -1), ("float32", 0.25),
                        ("float64", 1e300), ("bool", True), ("string", "zwölf")):  # fmt: skip
        getattr(writer, f"add_{kind}")(f"toy.{kind}", value)
    for key, values in (("words", ["a", "", "é"]), ("numbers", [1.5, 2.5]), ("flags", [True, False])):
        writer.add_array(f"toy.{key}", values)
    writer.add_tensor("norm", np.arange(8, dtype=np.float32))
    writer.add_tensor("weight", np.zeros((2, 18), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    _written(writer)
    return path.read_bytes()


def tokenizer_gguf(path: Path, spm: bool) -> bytes:
    """A tokenizer alone."""
    writer = gguf.GGUFWriter(path, "toy")
    _add_tokenizer(writer, spm)
    writer.add_tensor("norm", np.arange(8, dtype=np.float32))
    _written(writer)
    return path.read_bytes()


def _written(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@cache
def tokenizer_files() -> dict[str, dict[str, bytes]]:
    """By a kind of tokenizer: its folder."""
    letters = {chr(97 + i): i + 3 for i in range(26)}
    begin = {"<unk>": 0, "<s>": 1, "</s>": 2}
    byte_level = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made: dict[str, tokenizers.Tokenizer] = {}
    words = {f"w{i}": i for i in range(WORDS)}
    made["words"] = tokenizers.Tokenizer(models.WordLevel(words, unk_token="w0"))
    made["words"].decoder = decoders.Metaspace()
    made["bytes"] = tokenizers.Tokenizer(
        models.BPE(byte_level | {"he": 256, "hel": 257}, [("h", "e"), ("he", "l")])
    )
    made["bytes"].pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}| ?\p{L}+|\s+"), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )  # fmt: skip
    made["bytes"].decoder = decoders.ByteLevel()
    made["bytes"].add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>", normalized=True)])
    made["merges"] = tokenizers.Tokenizer(
        models.BPE(
            begin | letters | {"ab": 29}, [("a", "b")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    made["merges"].normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made["merges"].decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made["merges"].post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    made["scores"] = tokenizers.Tokenizer(
        models.Unigram([(t, -float(i)) for t, i in (begin | letters).items()], 0)
    )
    made["scores"].normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made["scores"].pre_tokenizer = pre_tokenizers.Metaspace()
    made["scores"].decoder = decoders.Metaspace()
    made["scores"].add_special_tokens([AddedToken("<eot>", normalized=True, lstrip=True)])
    config = {
        "eos_token": "</s>",
        "bos_token": {"content": "<s>"},
        "chat_template": CHAT,
        "add_bos_token": True,
    }
    beside = {
        "tokenizer_config.json": json.dumps(config).encode(),
        "generation_config.json": json.dumps({"eos_token_id": [2, 3]}).encode(),
    }
    return {kind: {"tokenizer.json": t.to_str().encode(), **beside} for kind, t in made.items()}
