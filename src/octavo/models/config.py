"""DecoderConfig: the numbers of a decoder-only model, read from config.json or GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Names follow config.json of transformers' Llama.

    Attributes:
        rope_scaling: config.json's rope_scaling, or None.
        permuted_qk: rows of q and k are stored in GGUF's interleaved rotary order.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    permuted_qk: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
                     "num_kv_heads", "head_dim", "max_position"):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise CheckpointError(f"the model's {name} must be a positive integer, not {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise CheckpointError(f"head_dim {self.head_dim} is odd, rotary embedding needs pairs")


class Reader:
    """Typed look-ups in a checkpoint's config; a missing or wrong value is named."""

    def __init__(self, config: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._config, self._where, self._prefix = config, where, prefix

    def get(self, key: str, default: Any = None) -> Any:
        value = self._config.get(self._prefix + key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise CheckpointError(f"{self._where}: {self._prefix}{key} must be an integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CheckpointError(f"{self._where}: {self._prefix}{key} must be a number, not {value!r}")
        return float(value)

    def refuse(self, key: str, allowed: tuple[Any, ...]) -> None:
        """Raise unless key is absent or holds an allowed value: what is not computed is not ignored."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise CheckpointError(f"{self._where}: {self._prefix}{key} = {value!r} is not supported")
