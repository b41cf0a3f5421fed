"""EngineArgs: keyword arguments as vLLM's users write them, turned into an EngineConfig."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, UnsupportedError

_FIELDS = {f.name for f in dataclasses.fields(EngineConfig)}
_ALIASES = {
    "block_size": "page_size",
    "num_gpu_blocks_override": "num_pages",
    "num_local_pages": "num_sliding_pages",
    "torch_dtype": "dtype",
}

# What peers know and Octavo does not do: accepted only where it asks for what happens anyway.
_HARMLESS: dict[str, tuple[object, ...]] = {
    "code_revision": (None,),
    "compilation_config": (None,),
    "data_parallel_size": (None, 1),
    "disable_custom_all_reduce": (None, True, False),
    "disable_log_stats": (None, True),
    "distributed_executor_backend": (None, "mp", "uni"),
    "download_dir": (None,),
    "enable_expert_parallel": (None, False),
    "guided_decoding_backend": (None, "auto"),
    "hf_overrides": (None, {}),
    "hf_token": (None,),
    "limit_mm_per_prompt": (None, {}),
    "lora_request": (None,),
    "max_seq_len_to_capture": (None,),
    "mm_processor_kwargs": (None, {}),
    "rope_scaling": (None,),
    "runner": (None, "auto", "generate"),
    "task": (None, "auto", "generate"),
    "tokenizer_revision": (None,),
    "enable_chunked_prefill": (None, True),
    "pipeline_parallel_size": (None, 1),
    "cpu_offload_gb": (None, 0),
    "revision": (None, "main"),
    "tokenizer_mode": (None, "auto"),
    "load_format": (None, "auto"),
    "enable_lora": (None, False),
    "device_map": (None, "auto"),
    "disable_log_requests": (None, True, False),
    "enable_log_requests": (None, False),
    "fuse_layers": (None, True),
    "low_cpu_mem_usage": (None, True, False),
    "safetensors": (None, True),
    "use_safetensors": (None, True),
    "draft_model": (None,),
}

_ON_LOAD = {
    "load_in_4bit": 'quantization="nf4"',
    "load_in_8bit": 'quantization="int8"',
    "quantization_config": 'quantization="nf4" or "int8", or ask octavo.compat.AutoModelForCausalLM',
}
"""Arguments of transformers' loaders -> what LLM takes instead."""

_INSTEAD = {"draft_model": ': give speculative_config={"method": "draft", "model": ...}'}
"""What to give for a name that Octavo does not take, where it does the thing."""

HARMLESS_IN_CALLS: dict[str, tuple[object, ...]] = {
    "chat_template": (None,),
    "chat_template_content_format": ("auto", "string"),
    "lora_request": (None,),
    "mm_processor_kwargs": (None, {}),
    "prompt_adapter_request": (None,),
    "tokenization_kwargs": (None, {}),
}
"""The same of arguments of LLM.generate() and LLM.chat()."""


class EngineArgs:
    """EngineConfig by vLLM's keyword names. AsyncEngineArgs is the same class.

    trust_remote_code is accepted and has no effect: no remote code is ever run.

    Raises:
        InvalidRequestError: an unknown name (the nearest one is suggested) or a wrong value.
        UnsupportedError: a name that peers know and Octavo does not do.
    """

    def __init__(self, model: str, **options: Any) -> None:
        values: dict[str, Any] = {}
        options = _one_speculation(options)
        if (place := options.get("device_map")) not in (None, "auto") and isinstance(place, str):
            if (other := options.get("device")) not in (None, place):
                raise InvalidRequestError(f"device={other!r} and device_map={place!r} differ", "device_map")
            options = {**options, "device": place, "device_map": None}  # all of it on one device
        for name, value in options.items():
            field = _ALIASES.get(name, name)
            if field in _FIELDS:
                new = _dtype(value) if field == "dtype" else value
                if field in values and values[field] != new:  # by another name of it
                    raise InvalidRequestError(f"{field} is given twice: {values[field]!r} and {new!r}", field)
                values[field] = new
            elif name in _HARMLESS:
                if value not in _HARMLESS[name]:
                    raise UnsupportedError(f"{name}={value!r} is not supported{_INSTEAD.get(name, '')}", name)
            else:
                near = difflib.get_close_matches(name, [*_FIELDS, *_ALIASES], 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                hint = f": give {_ON_LOAD[name]}" if name in _ON_LOAD else hint
                raise InvalidRequestError(f"{name} is not an engine argument{hint}", name)
        self.config = EngineConfig(model=str(model), **values)


AsyncEngineArgs = EngineArgs


def asks_for_nothing(given: Mapping[str, object]) -> None:
    """Accept arguments of a call that peers know, where they ask for what happens anyway.

    Raises:
        TypeError: no such argument. UnsupportedError: a value that asks for something.
    """
    for name, value in given.items():
        if name not in HARMLESS_IN_CALLS:
            raise TypeError(f"unexpected keyword argument {name!r}")
        if value not in HARMLESS_IN_CALLS[name]:
            raise UnsupportedError(f"{name} is not supported here; it may be None", name)


def _dtype(value: Any) -> Any:
    """A dtype's name: torch.bfloat16 is "bfloat16"."""
    return value if isinstance(value, str) else str(value).removeprefix("torch.")


_SPECULATION = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}
"""Arguments of vLLM's older versions, and what they are called in speculative_config."""


def _one_speculation(options: dict[str, Any]) -> dict[str, Any]:
    """The same with speculative_config in the place of older arguments.

    Raises:
        InvalidRequestError: both are given.
    """
    older = {name: options[name] for name in _SPECULATION if options.get(name) is not None}
    options = {name: value for name, value in options.items() if name not in _SPECULATION}
    if older and options.get("speculative_config") is not None:
        raise InvalidRequestError(
            f"{next(iter(older))} and speculative_config exclude each other", "speculative_config"
        )
    if older and "speculative_model" not in older:
        raise InvalidRequestError(
            f"{next(iter(older))} needs a speculative_model beside it", next(iter(older))
        )
    if older:
        options["speculative_config"] = {_SPECULATION[name]: value for name, value in older.items()}
    return options
