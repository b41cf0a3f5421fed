"""A Llama of random weights as a folder that an engine loads, its tokenizer included: nothing is downloaded.

A large one is hollow: its file has holes where weights would be, which nobody reads, because `filled` makes
them on the device as gpu.models does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import numpy as np
import torch

from gpu.models import Shape
from octavo.kernels.cuda.backend import CudaBackend
from octavo.kernels.cuda.weight import CudaWeight, PackedRows
from octavo.kernels.weight import Layout, Weight

SPECIAL = ("<s>", "</s>", "<unk>")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def save(folder: Path, shape: Shape, hollow: bool = False) -> Path:
    """The model's folder; one that is there already is left as it is."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "model.safetensors").open("wb") as file:
        write_weights(file, shape, hollow)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(shape.vocab)), encoding="utf-8")
    words = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(words), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config(shape)), encoding="utf-8")
    return folder


def config(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": shape.vocab,
        "hidden_size": shape.hidden, "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "max_position_embeddings": shape.positions, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": shape.tied, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip


def tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Of the file, in its order."""
    hidden, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab, hidden)}
    for layer in range(shape.layers):
        each = {
            "input_layernorm": (hidden,), "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
            "post_attention_layernorm": (hidden,), "mlp.gate_proj": (shape.inner, hidden),
            "mlp.up_proj": (shape.inner, hidden), "mlp.down_proj": (hidden, shape.inner),
        }  # fmt: skip
        found |= {f"model.layers.{layer}.{name}.weight": size for name, size in each.items()}
    found["model.norm.weight"] = (hidden,)
    return found if shape.tied else {**found, "lm_head.weight": (shape.vocab, hidden)}


def write_weights(file: BinaryIO, shape: Shape, hollow: bool) -> None:
    """A safetensors file: f32, or hollow bf16. Norms are 1."""
    rng, every, header, at = np.random.default_rng(0), tensors(shape), dict[str, Any](), 0
    size, name = (2, "BF16") if hollow else (4, "F32")
    for tensor, dims in every.items():
        end = at + size * math.prod(dims)
        header[tensor] = {"dtype": name, "shape": dims, "data_offsets": [at, end]}
        at = end
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    file.write(len(said).to_bytes(8, "little") + said)
    for tensor, dims in every.items():
        begin = 8 + len(said) + header[tensor]["data_offsets"][0]
        if len(dims) == 1:  # bf16's 1 is the upper half of f32's
            ones = np.ones(dims, "<f4").view("<u2")
            file.seek(begin)
            file.write((ones[1::2] if hollow else ones).tobytes())
        elif not hollow:
            values = rng.standard_normal(dims) * 1.5 * dims[-1] ** -0.5
            file.seek(begin)
            file.write(values.astype("<f4").tobytes())
    file.truncate(8 + len(said) + at)


def tokenizer(vocab: int) -> dict[str, Any]:
    """tokenizer.json of byte-level BPE without merges: each byte is a token, and the rest are words that no
    text is cut into."""
    words = [*SPECIAL, *alphabet()]
    words += [f"\u0120w{n}" for n in range(vocab - len(words))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": n, "content": word, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for n, word in enumerate(SPECIAL)
        ],
        "pre_tokenizer": level, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {word: n for n, word in enumerate(words)}, "merges": [],
        },
    }  # fmt: skip


def alphabet() -> list[str]:
    """What GPT-2 writes for each byte: printable ones are themselves, the others letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (n for n in range(256) if n not in plain)
    letters = {n: chr(n) for n in plain} | {n: chr(256 + i) for i, n in enumerate(others)}
    return [letters[n] for n in range(256)]


@contextmanager
def filled() -> Iterator[None]:
    """Engines that load meanwhile make the weights of a hollow model on the device."""
    made: dict[torch.device, torch.Generator] = {}

    def pack(
        self: CudaBackend, weights: Sequence[Weight], gated: bool = False, head: bool = False
    ) -> CudaWeight:
        if self.device not in made:
            made[self.device] = torch.Generator(self.device).manual_seed(0)
        rows, columns = sum(w.shape[0] for w in weights), weights[0].shape[1]
        values = torch.randn(
            (rows, columns), generator=made[self.device], device=self.device, dtype=self.dtype
        )
        return CudaWeight([PackedRows(Layout.F32, rows, columns, values.mul_(columns**-0.5))], gated)

    with mock.patch.object(CudaBackend, "pack", pack):
        yield
