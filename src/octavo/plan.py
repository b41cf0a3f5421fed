"""Memory by arithmetic: what weights and a KV cache take, and how many sequences fit. Nothing is loaded.

A model is named as LLM names it, or is an LLM, or anything with a `config` (transformers' models, and their
configs). GB are 10^9 bytes; gpu_memory_gb are of 2^30, as cards are sold and as lessons count them.

    KV bytes of a sequence = 2 (keys, values) * layers * KV heads * head size * tokens * bytes of a number

is the rule for models whose layers are alike. For a model that is named it is not assumed: what its layers
store is read from their own specification (kernels.types.KVSpec), latents and all.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.assembly.planning import outline
from octavo.checks import plain_number
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, OctavoError
from octavo.runtime.free_memory import available_memory

GB = 1e9
GIB = 2**30
OVERHEAD_GB = 2.0
"""Of a process with a framework, beside weights and KV."""
KV_BYTES = 2
"""Of a float16 number."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What memory a model needs.

    Attributes:
        weights: bytes. kv_per_token: bytes of keys and values of one token in all layers, at float16.
    """

    weights: int
    kv_per_token: int


def estimate_memory_usage(
    model_params_b: Any,
    precision_bytes: float | None = None,
    batch_size: int = 1,
    seq_len: int = 2048,
    num_layers: int | None = None,
    num_heads: int | None = None,
    d_k: int | None = None,
    *,
    num_kv_heads: int | None = None,
    overhead_gb: float = OVERHEAD_GB,
) -> dict[str, float]:
    """Estimate GB: {"model", "kv_cache", "overhead", "total"}.

    Args:
        model_params_b: parameters in 10^9; then the numbers below are needed. Or a model, which has them.
        precision_bytes: of a weight: 2 for float16, 1 for int8. None: a model's as they would be loaded.
        seq_len: tokens of each of the batch_size sequences.
        num_heads: of the queries, which is what a model without groups stores; num_kv_heads: of the keys,
            where they are fewer. d_k: size of a head.
        overhead_gb: what else a process takes; activations are in it, and grow with the batch.

    Raises:
        InvalidRequestError: a number is missing or not above 0.
        OctavoError: there is no such model.
    """
    if precision_bytes is not None:
        _finite("precision_bytes", precision_bytes)
    model_params_b = plain_number(model_params_b)
    if isinstance(model_params_b, (int, float)):
        heads = num_heads if num_kv_heads is None else num_kv_heads
        given = {"num_layers": num_layers, "num_heads": heads, "d_k": d_k, "precision_bytes": precision_bytes}
        for name, value in given.items():
            if value is None:
                raise InvalidRequestError(f"{name} is needed where no model is named", name)
        _finite("model_params_b", model_params_b)
        product = _positive(num_layers=num_layers, num_heads=heads, d_k=d_k)
        if num_heads and num_kv_heads and num_heads % num_kv_heads:
            said = f"num_heads {num_heads} is no multiple of num_kv_heads {num_kv_heads}"
            raise InvalidRequestError(said, "num_kv_heads")
        size = ModelSize(int(model_params_b * GB * float(precision_bytes or 0)), 2 * KV_BYTES * product)
    else:
        own = {"num_layers": num_layers, "num_heads": num_heads, "d_k": d_k, "num_kv_heads": num_kv_heads}
        for name, value in own.items():
            if value is not None:
                raise InvalidRequestError(f"{name} is the model's own where one is named", name)
        size = size_of(model_params_b, precision_bytes)
    _finite("overhead_gb", overhead_gb, or_zero=True)
    kv_cache = size.kv_per_token * _positive(batch_size=batch_size, seq_len=seq_len) / GB
    weights = size.weights / GB
    total = weights + kv_cache + overhead_gb
    return {"model": weights, "kv_cache": kv_cache, "overhead": overhead_gb, "total": total}


def estimate_kv_cache(model: Any, max_seq_len: int) -> int:
    """Bytes that keys and values of one sequence of so many tokens take, at float16.

    Raises:
        OctavoError: there is no such model.
    """
    return size_of(model).kv_per_token * _positive(max_seq_len=max_seq_len)


def find_optimal_batch_size(model: Any, max_seq_len: int, gpu_memory_gb: float | None = None) -> int:
    """How many sequences of max_seq_len tokens fit beside the weights; 0: not one, or not even these.

    It is the largest batch that fits, by memory alone: from some size on a larger one adds latency and no
    throughput (`octavo bench` shows where).

    Args:
        gpu_memory_gb: of 2^30 bytes each; None: what this machine has free.

    Raises:
        InvalidRequestError: a number is not above 0. OctavoError: there is no such model.
    """
    if gpu_memory_gb is not None:
        _finite("gpu_memory_gb", gpu_memory_gb)
    size = size_of(model)
    memory = available_memory() if gpu_memory_gb is None else int(gpu_memory_gb * GIB)
    return max(0, memory - size.weights) // (size.kv_per_token * _positive(max_seq_len=max_seq_len))


def size_of(model: Any, precision_bytes: float | None = None) -> ModelSize:
    """What a model needs, without loading it.

    Args:
        model: an alias, file, folder or hub id; an LLM; a config.json as a mapping; or an object with a
            `config` or `to_dict()`, and with parameters() if its weights are to count.
        precision_bytes: of a weight; None: as LLM(model) would keep them.

    Raises:
        OctavoError: it is none of these, or Octavo has no such architecture.
    """
    if isinstance(model, (str, Path)):
        return _outlined(
            EngineConfig(model=str(model), device="cpu", kv_cache_dtype="float16"), precision_bytes
        )
    user = getattr(getattr(model, "llm", model), "engine_config", None)  # (a pipeline has an llm)
    if isinstance(user, EngineConfig):
        user = replace(user, device="cpu", backend="auto", kv_cache_dtype="float16")
        return _outlined(user, precision_bytes)
    config = _config_of(model)
    with tempfile.TemporaryDirectory(prefix="octavo-plan-") as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            size = size_of(folder, precision_bytes)
        except OctavoError as error:
            said = str(error).replace(str(Path(folder, "config.json")), "the config")
            raise InvalidRequestError(said.replace(folder, "the config"), "model") from None
    counted = getattr(model, "parameters", None)
    if not callable(counted):
        return size
    each = list(counted())
    bytes_of = (p.numel() * (precision_bytes or p.element_size()) for p in each)
    return ModelSize(int(sum(bytes_of)), size.kv_per_token) if each else size


def _config_of(model: Any) -> Mapping[str, Any]:
    config = getattr(model, "config", model)
    config = config.to_dict() if callable(getattr(config, "to_dict", None)) else config
    if not isinstance(config, Mapping):
        kind = type(model).__name__
        raise InvalidRequestError(f"a model is a name, an LLM or has a config, and not {kind}", "model")
    return {name: value for name, value in config.items() if _is_json(value)}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _outlined(user: EngineConfig, precision_bytes: float | None) -> ModelSize:
    found = outline(user)
    weights = found.weights if precision_bytes is None else int(found.parameters * precision_bytes)
    return ModelSize(weights, found.bytes_per_token)


def _finite(name: str, value: object, or_zero: bool = False) -> None:
    """
    Raises:
        InvalidRequestError: it is no finite number above 0; or 0, where that is taken.
    """
    value = plain_number(value)
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number * GIB) or number < 0 or (number == 0 and not or_zero):
        least = "0 or more" if or_zero else "above 0"
        raise InvalidRequestError(f"{name} must be a number {least}, not {value!r}", name)


def _positive(**numbers: int | None) -> int:
    """Their product.

    Raises:
        InvalidRequestError: one is not a whole number above 0.
    """
    product = 1
    for name, given in numbers.items():
        value = plain_number(given)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidRequestError(f"{name} must be a whole number above 0, not {value!r}", name)
        product *= value
    return product
