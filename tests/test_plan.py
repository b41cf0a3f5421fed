"""octavo.plan: the lessons' figures, by the lessons' own calls; and the same of models that are named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.config import EngineConfig
from octavo.errors import CheckpointError, InvalidRequestError
from octavo.plan import estimate_kv_cache, estimate_memory_usage, find_optimal_batch_size, size_of

LLAMA_7B: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "torch_dtype": "float16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_3_8B = LLAMA_7B | {
    "vocab_size": 128_256, "intermediate_size": 14_336, "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}  # fmt: skip
LLAMA_3_70B = LLAMA_3_8B | {
    "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip


def folder(where: Path, config: dict[str, Any]) -> str:
    (where / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(where)


@pytest.mark.parametrize(
    ("config", "tokens", "sequences", "gigabytes"),
    [
        (LLAMA_7B, 2048, 1, 1.07),
        (LLAMA_7B, 2048, 32, 34),
        (LLAMA_7B, 4096, 1, 2.1),
        (LLAMA_3_8B, 8192, 1, 1.07),
        (LLAMA_3_70B, 8192, 1, 2.68),
    ],
)
def test_the_lessons_figures_of_kv_caches(
    config: dict[str, Any], tokens: int, sequences: int, gigabytes: float, tmp_path: Path
) -> None:
    model = folder(tmp_path, config)
    assert sequences * estimate_kv_cache(model, tokens) / 1e9 == pytest.approx(gigabytes, rel=0.025)
    assert estimate_kv_cache(config, tokens) == estimate_kv_cache(model, tokens)


def test_the_lessons_call_of_estimate_memory_usage() -> None:
    """7e9 parameters of 2 bytes, 4,096 tokens: 14.0 and 2.1 GB, and 2 for the rest."""
    mem = estimate_memory_usage(
        model_params_b=7, precision_bytes=2, batch_size=1, seq_len=4096, num_layers=32, num_heads=32, d_k=128
    )
    assert [f"{mem[key]:.1f}" for key in ("model", "kv_cache", "overhead", "total")] == [
        "14.0",
        "2.1",
        "2.0",
        "18.1",
    ]
    grouped = estimate_memory_usage(7, 2, 1, 4096, 32, 32, 128, num_kv_heads=8)
    assert grouped["kv_cache"] == mem["kv_cache"] / 4


def test_a_model_that_is_named_has_the_numbers_itself(tmp_path: Path) -> None:
    model = folder(tmp_path, LLAMA_7B)
    mem = estimate_memory_usage(model, 2, batch_size=1, seq_len=4096)
    assert mem["model"] == pytest.approx(13.476, rel=1e-3)
    assert mem["kv_cache"] == pytest.approx(2.147, rel=1e-3)
    assert estimate_memory_usage(model, 1)["model"] == pytest.approx(mem["model"] / 2, rel=1e-6)


def test_how_many_sequences_fit(tmp_path: Path) -> None:
    model = folder(tmp_path, LLAMA_7B)
    # (24 GiB - 13.5 GB) / 1.07 GB
    assert find_optimal_batch_size(model, max_seq_len=2048, gpu_memory_gb=24) == 11
    assert find_optimal_batch_size(model, 2048, 12) == 0, "the weights alone are more"
    assert find_optimal_batch_size(model, 2048) >= 0, "of this machine's free memory"


def test_what_a_model_may_be(tmp_path: Path, smollm2_path: Path) -> None:
    parameter = SimpleNamespace(numel=lambda: 1000, element_size=lambda: 2)
    config = SimpleNamespace(to_dict=lambda: LLAMA_7B | {"dtype": object()})
    size = size_of(SimpleNamespace(config=config, parameters=lambda: [parameter, parameter]))
    assert (size.weights, size.kv_per_token) == (4000, 2 * 32 * 32 * 128 * 2)
    assert size_of(smollm2_path).kv_per_token == 2 * 30 * 3 * 64 * 2
    assert octavo.plan.size_of is size_of


def test_a_loaded_model_has_the_weights_that_it_was_loaded_with(tmp_path: Path) -> None:
    """An LLM that made int8 of 16 bits takes half of them; its table and head stay."""
    model = folder(tmp_path, LLAMA_7B)
    loaded = SimpleNamespace(engine_config=EngineConfig(model=model, quantization="int8"))
    assert 0.5 < size_of(loaded).weights / size_of(model).weights < 0.54
    assert size_of(loaded, 2).weights == size_of(model, 2).weights


def test_numbers_may_be_numpys() -> None:
    plain: Any = (7, 2, 1, 4096, 32, 32, 128)
    assert estimate_memory_usage(*map(np.int64, plain)) == estimate_memory_usage(*plain)
    assert find_optimal_batch_size(LLAMA_7B, np.int32(2048), np.float32(24)) == 11


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: estimate_memory_usage(7), InvalidRequestError, "num_layers is needed"),
        (lambda: estimate_memory_usage(7, 2, 0, 1, 1, 1, 1), InvalidRequestError, "batch_size must be"),
        (lambda: estimate_memory_usage(7, 2, 1, 1, 1, -1, 1), InvalidRequestError, "num_heads must be"),
        (lambda: estimate_memory_usage(-7, 2, 1, 1, 1, 1, 1), InvalidRequestError, "model_params_b must be"),
        (
            lambda: estimate_memory_usage(float("nan"), 2, 1, 1, 1, 1, 1),
            InvalidRequestError,
            "model_params_b",
        ),
        (lambda: estimate_memory_usage(7, -2, 1, 1, 1, 1, 1), InvalidRequestError, "precision_bytes must be"),
        (lambda: estimate_memory_usage("smollm2", -2), InvalidRequestError, "precision_bytes must be"),
        (
            lambda: estimate_memory_usage("smollm2", overhead_gb=-5),
            InvalidRequestError,
            "overhead_gb must be a number 0 or more",
        ),
        (
            lambda: estimate_memory_usage("smollm2", overhead_gb=float("inf")),
            InvalidRequestError,
            "overhead_gb must be",
        ),
        (
            lambda: estimate_memory_usage(7, 2, 1, 1, 1, 32, 1, num_kv_heads=64),
            InvalidRequestError,
            "num_heads 32 is no multiple of num_kv_heads 64",
        ),
        (
            lambda: estimate_memory_usage(7, 2, 1, 1, 1, 32, 1, num_kv_heads=5),
            InvalidRequestError,
            "num_heads 32 is no multiple of num_kv_heads 5",
        ),
        (
            lambda: estimate_memory_usage("smollm2", num_layers=1),
            InvalidRequestError,
            "num_layers is the model's own",
        ),
        (
            lambda: estimate_memory_usage("smollm2", num_kv_heads=999),
            InvalidRequestError,
            "num_kv_heads is the model's own",
        ),
        (lambda: find_optimal_batch_size("smollm2", 9, 1e300), InvalidRequestError, "gpu_memory_gb must be"),
        (lambda: estimate_kv_cache({}, 5), InvalidRequestError, "^the config has no model_type"),
        (lambda: find_optimal_batch_size("smollm2", 9, -1), InvalidRequestError, "gpu_memory_gb must be"),
        (lambda: find_optimal_batch_size("smollm2", 9, float("nan")), InvalidRequestError, "gpu_memory_gb"),
        (lambda: estimate_kv_cache(5, 10), InvalidRequestError, "a model is a name, an LLM or has a config"),
        (lambda: estimate_kv_cache("no-such-model", 10), CheckpointError, "unknown model"),
        (lambda: find_optimal_batch_size(LLAMA_7B, 0), InvalidRequestError, "max_seq_len must be"),
    ],
)
def test_what_is_wrong_is_said(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
