"""The models of the golden file: tiny, made on the spot, and the same numbers on every machine.

Weights are small integers times a power of two, drawn from Python's own random, so neither a library's
version nor a CPU has a say in them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS, LENGTH = 32, 64, 4, 2, 2, 512
WINDOW = 24
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "i n", "e r", "a n", "th e", "r e", "o n", "Ġ t", "Ġ a", "Ġ s", "an d", "Ġ w", "o u", "e n")
EOS = 2
KINDS = ("llama", "window", "mixed", "t5")

TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Weights:
    """Draws the tensors of one model, by name."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.tensors: dict[str, np.ndarray] = {}

    def matrix(self, name: str, rows: int, columns: int, exponent: int = 8) -> None:
        """Integers from -127 to 127, times 2**-exponent."""
        drawn = [self._rng.randint(-127, 127) for _ in range(rows * columns)]
        self.tensors[name] = np.array(drawn, np.float32).reshape(rows, columns) * np.float32(2.0**-exponent)

    def norm(self, name: str, size: int) -> None:
        """Around 1."""
        drawn = [1 + self._rng.randint(-16, 16) / 64 for _ in range(size)]
        self.tensors[name] = np.array(drawn, np.float32)


def vocabulary() -> dict[str, int]:
    """Special tokens, an alphabet of bytes as GPT-2 writes them, and what the merges make."""
    from tokenizers.pre_tokenizers import ByteLevel

    names = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    return {name: i for i, name in enumerate(names)}


def save_tokenizer(folder: Path, template: str | None) -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    merges = [(left, right) for left, right in (merge.split() for merge in MERGES)]
    tokenizer = Tokenizer(BPE(vocabulary(), merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = Decoder()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[EOS]}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def decoder(kind: str) -> tuple[dict[str, Any], Weights]:
    """A Llama, or a Mistral whose layers (window) or the first of them (mixed) see WINDOW tokens."""
    weights, size = Weights(KINDS.index(kind) + 1), HIDDEN // HEADS
    vocab = len(vocabulary())
    weights.matrix("model.embed_tokens.weight", vocab, HIDDEN, 6)
    weights.matrix("lm_head.weight", vocab, HIDDEN)
    weights.norm("model.norm.weight", HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        weights.norm(f"{layer}.input_layernorm.weight", HIDDEN)
        weights.norm(f"{layer}.post_attention_layernorm.weight", HIDDEN)
        weights.matrix(f"{layer}.self_attn.q_proj.weight", HEADS * size, HIDDEN)
        weights.matrix(f"{layer}.self_attn.k_proj.weight", KV_HEADS * size, HIDDEN)
        weights.matrix(f"{layer}.self_attn.v_proj.weight", KV_HEADS * size, HIDDEN)
        weights.matrix(f"{layer}.self_attn.o_proj.weight", HIDDEN, HEADS * size)
        weights.matrix(f"{layer}.mlp.gate_proj.weight", INNER, HIDDEN)
        weights.matrix(f"{layer}.mlp.up_proj.weight", INNER, HIDDEN)
        weights.matrix(f"{layer}.mlp.down_proj.weight", HIDDEN, INNER)
    config: dict[str, Any] = {
        "model_type": "llama" if kind == "llama" else "mistral",
        "architectures": ["LlamaForCausalLM" if kind == "llama" else "MistralForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    if kind != "llama":
        config["sliding_window"] = WINDOW
    if kind == "mixed":
        config["layer_types"] = ["sliding_attention", "full_attention"]
    return config, weights


def encoder_decoder() -> tuple[dict[str, Any], Weights]:
    """A T5 1.1 with a head of its own."""
    weights, size, vocab = Weights(len(KINDS)), HIDDEN // HEADS, len(vocabulary())
    weights.matrix("shared.weight", vocab, HIDDEN, 6)
    weights.matrix("lm_head.weight", vocab, HIDDEN, 6)
    for side in ("encoder", "decoder"):
        weights.norm(f"{side}.final_layer_norm.weight", HIDDEN)
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        weights.matrix(bias, 32, HEADS)
        for i in range(LAYERS):
            block = f"{side}.block.{i}.layer"
            parts = ["SelfAttention", "EncDecAttention"][: 1 + (side == "decoder")]
            for at, part in enumerate(parts):
                weights.norm(f"{block}.{at}.layer_norm.weight", HIDDEN)
                for name in "qkv":
                    exponent = 9 if name == "q" else 8
                    weights.matrix(f"{block}.{at}.{part}.{name}.weight", HEADS * size, HIDDEN, exponent)
                weights.matrix(f"{block}.{at}.{part}.o.weight", HIDDEN, HEADS * size)
            last = len(parts)
            weights.norm(f"{block}.{last}.layer_norm.weight", HIDDEN)
            for name in ("wi_0", "wi_1"):
                weights.matrix(f"{block}.{last}.DenseReluDense.{name}.weight", INNER, HIDDEN)
            weights.matrix(f"{block}.{last}.DenseReluDense.wo.weight", HIDDEN, INNER)
    config = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": vocab,
        "d_model": HIDDEN,
        "d_kv": size,
        "d_ff": INNER,
        "num_layers": LAYERS,
        "num_decoder_layers": LAYERS,
        "num_heads": HEADS,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "n_positions": LENGTH,
        "eos_token_id": EOS,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    return config, weights


def save(kind: str, folder: Path) -> Path:
    """The model's files in the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    config, weights = encoder_decoder() if kind == "t5" else decoder(kind)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights.tensors, folder / "model.safetensors")
    save_tokenizer(folder, None if kind == "t5" else TEMPLATE)
    return folder


def save_all(folder: Path) -> Mapping[str, str]:
    """Every kind, each in a folder of its own: kind -> path."""
    return {kind: str(save(kind, folder / kind)) for kind in KINDS}
