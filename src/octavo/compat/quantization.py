"""BitsAndBytesConfig and load_in_4bit, as the engine's quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError


@dataclass(frozen=True, slots=True)
class BitsAndBytesConfig:
    """bitsandbytes' settings by transformers' names.

    Attributes:
        load_in_4bit: NF4 ("nf4" as bnb_4bit_quant_type, which is the only one taken). load_in_8bit: int8.
        bnb_4bit_compute_dtype: without effect: activations are what LLM's dtype says.
        bnb_4bit_use_double_quant: without effect on answers: scales are kept as they are read.
        llm_int8_threshold: 6.0, bitsandbytes' own; columns of outliers are not kept apart.

    Raises:
        UnsupportedError, InvalidRequestError: a value asks for something else, or both for 4 and 8 bits.
    """

    load_in_8bit: bool = False
    load_in_4bit: bool = False
    llm_int8_threshold: float = 6.0
    bnb_4bit_compute_dtype: Any = None
    bnb_4bit_quant_type: str = "nf4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_quant_storage: Any = None

    def __post_init__(self) -> None:
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
    own = {name: options.pop(name) for name in names}
    given = options.pop("quantization_config", None)
    if given is None:
        return _read(own).method
    if own:
        raise InvalidRequestError(f"{names[0]} and quantization_config exclude each other", names[0])
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
