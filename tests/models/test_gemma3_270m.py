"""The real Gemma 3 270M in Q4_K_M: Q4_K, Q5_0, Q6_K and Q8_0 side by side, against transformers."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.checkpoints import sources
from octavo.checkpoints.gguf import GGUFCheckpoint, open_gguf
from octavo.kernels.ops import Backend
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.models.families.gemma2 import NAMES
from octavo.tokenizer.gguf import from_gguf
from support.forward import load, logits

pytestmark = pytest.mark.slow
PROMPT = "The capital of France is Paris. The capital of Italy is"


@pytest.fixture(scope="module")
def path() -> Path:
    return sources.resolve("gemma3-270m")


def transformers_logits(checkpoint: GGUFCheckpoint, ids: list[int]) -> np.ndarray[Any, Any]:
    """Of a Gemma3ForCausalLM whose weights are the file's, dequantized by the gguf package."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    meta = {key.removeprefix("gemma3."): value for key, value in checkpoint.config.items()}
    config = Gemma3TextConfig(
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=meta["embedding_length"],
        intermediate_size=meta["feed_forward_length"],
        num_hidden_layers=meta["block_count"],
        num_attention_heads=meta["attention.head_count"],
        num_key_value_heads=meta["attention.head_count_kv"],
        head_dim=meta["attention.key_length"],
        sliding_window=meta["attention.sliding_window"],
        query_pre_attn_scalar=256,
    )
    model = Gemma3ForCausalLM(config)
    ours = {theirs: name for name, theirs in NAMES.items()}
    with torch.no_grad():
        for stored, tensor in checkpoint.tensors.items():
            layer = next(iter(re.findall(r"\.(\d+)\.", stored)), "")
            stem = re.sub(r"\.\d+\.", ".{i}.", stored.removesuffix(".weight"))
            raw = tensor.data.view(np.float32) if tensor.format == "F32" else tensor.data
            kind = gguf.GGMLQuantizationType[tensor.format]
            values = gguf.dequantize(raw.reshape(tensor.shape[0], -1), kind)
            values = values.reshape(tensor.shape) - (1 if stored.endswith("norm.weight") else 0)
            parameter = model.get_parameter(ours[stem].replace("{i}", layer) + ".weight")
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values, np.float32)))
        return np.asarray(model(torch.tensor([ids])).logits[0])


def test_dequantized_it_equals_transformers(path: Path) -> None:
    checkpoint = open_gguf(path)
    tokenizer = from_gguf(checkpoint.config)
    ids = tokenizer.encode(PROMPT)
    theirs = transformers_logits(checkpoint, ids)
    gc.collect()
    backend = _backend()
    ours = logits(load(path, backend), backend, ids, [len(ids)])
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    # As it is stored, activations are rounded to int8 too: other logits, the same word.
    kept = logits(load(path, backend, "auto"), backend, ids, [len(ids)])
    words = [tokenizer.decode([int(rows[-1].argmax())]) for rows in (kept, theirs)]
    assert words == [" Rome", " Rome"]
    assert np.corrcoef(kept[-1], theirs[-1])[0, 1] > 0.995


def _backend() -> Backend:
    if not native_available():
        return ReferenceBackend()
    from octavo.kernels.cpu import CpuBackend

    return CpuBackend(threads=2)
