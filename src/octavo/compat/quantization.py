"""BitsAndBytesConfig and load_in_4bit, as the engine's quantization."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.checks import booleans, need
from octavo.errors import InvalidRequestError, UnsupportedError

DTYPES = ("None", "float32", "float16", "bfloat16", "uint8")


@dataclass(frozen=True, slots=True)
class BitsAndBytesConfig:
    """bitsandbytes' settings by transformers' names, in transformers' order.

    Attributes:
        load_in_4bit: NF4 ("nf4" as bnb_4bit_quant_type, which is the only one taken; transformers' default is
            "fp4"). load_in_8bit: int8.
        llm_int8_threshold: 6.0, bitsandbytes' own; columns of outliers are not kept apart.
        llm_int8_skip_modules, llm_int8_enable_fp32_cpu_offload, llm_int8_has_fp16_weight: as they are here.
        bnb_4bit_compute_dtype, bnb_4bit_quant_storage: a dtype's name or torch's own, without effect:
            activations are what LLM's dtype says, and weights are bytes.
        bnb_4bit_use_double_quant: without effect on answers: scales that are made on load stay as they are.

    Raises:
        UnsupportedError, InvalidRequestError: a value asks for something else, or both for 4 and 8 bits.
    """

    load_in_8bit: bool = False
    load_in_4bit: bool = False
    llm_int8_threshold: float = 6.0
    llm_int8_skip_modules: Any = None
    llm_int8_enable_fp32_cpu_offload: bool = False
    llm_int8_has_fp16_weight: bool = False
    bnb_4bit_compute_dtype: Any = None
    bnb_4bit_quant_type: str = "nf4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_quant_storage: Any = None

    def __post_init__(self) -> None:
        booleans(self, *(each.name for each in dataclasses.fields(self) if each.default is False))
        for name in ("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"):
            dtype = str(getattr(self, name)).removeprefix("torch.")
            need(dtype in DTYPES, f"must be one of {', '.join(DTYPES)}, not {dtype[:60]!r}", name)
        for name in ("skip_modules", "enable_fp32_cpu_offload", "has_fp16_weight"):
            if getattr(self, f"llm_int8_{name}"):
                said = f"llm_int8_{name} is not supported: all projections are int8"
                raise UnsupportedError(said, f"llm_int8_{name}")
        if self.load_in_4bit and self.load_in_8bit:
            raise InvalidRequestError("load_in_4bit and load_in_8bit exclude each other", "load_in_4bit")
        if self.bnb_4bit_quant_type != "nf4":
            raise UnsupportedError(
                f"bnb_4bit_quant_type {self.bnb_4bit_quant_type!r} is not made on load; 'nf4' is",
                "bnb_4bit_quant_type",
            )
        if self.llm_int8_threshold != 6.0:
            raise UnsupportedError("llm_int8_threshold: no columns are kept apart", "llm_int8_threshold")

    @property
    def method(self) -> str | None:
        """The engine's quantization; None: as stored."""
        return "nf4" if self.load_in_4bit else "int8" if self.load_in_8bit else None


def method_of(options: dict[str, Any]) -> str | None:
    """Take quantization_config, load_in_4bit, load_in_8bit and bnb_4bit_* out of a loader's options.

    Raises:
        UnsupportedError, InvalidRequestError: as BitsAndBytesConfig, or it is something else.
    """
    names = [n for n in options if n.startswith(("load_in_", "bnb_4bit_", "llm_int8_"))]
    own = {name: value for name in names if (value := options.pop(name)) is not None}
    given = options.pop("quantization_config", None)
    if given is None:
        return _read(own).method
    if own:
        name = next(iter(own))
        raise InvalidRequestError(f"{name} and quantization_config exclude each other", name)
    if isinstance(given, Mapping):
        given = _read(dict(given))
    if not isinstance(given, BitsAndBytesConfig):
        kind = type(given).__name__
        raise UnsupportedError(
            f"quantization_config of type {kind}: BitsAndBytesConfig is taken", "quantization_config"
        )
    return given.method


def _read(fields: Mapping[str, Any]) -> BitsAndBytesConfig:
    for name in fields:
        if name not in BitsAndBytesConfig.__slots__:
            raise UnsupportedError(f"{name} is not a setting of BitsAndBytesConfig here", name)
    return BitsAndBytesConfig(**fields)
