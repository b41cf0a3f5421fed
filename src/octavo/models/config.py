"""DecoderConfig: the numbers of a decoder-only model, read from config.json or GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from octavo.checkpoints.base import Checkpoint
from octavo.errors import CheckpointError
from octavo.kernels.ops import Activation
from octavo.models.rotary import yarn_mscale

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
}
"""config.json's name of an activation -> what kernels compute."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding.

    Attributes:
        dim: elements of a head that rotate, from the first.
        scaling: config.json's rope_scaling, completed with the model's lengths; empty for none.
    """

    theta: float
    dim: int
    scaling: Mapping[str, Any]
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Names follow config.json of transformers' Llama.

    Attributes:
        rope: None for learned positions or ALiBi.
        windows: each layer's sliding window, None for full attention; empty: full everywhere.
        attention_scale: factor of q . k; None: head_dim**-0.5. softcap: of attention scores.
        embed_scale: factor of the embedding. logit_softcap: of the logits.
        unit_norm: norm gains are stored as w of 1 + w.
        qk_norm: each head of q and k has an RMS norm before rotation.
        unrotated: layers whose q and k are not rotated.
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
    norm_eps: float
    rope: RopeConfig | None = None
    windows: tuple[int | None, ...] = ()
    activation: Activation = Activation.SILU
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    attention_scale: float | None = None
    softcap: float | None = None
    embed_scale: float = 1.0
    logit_softcap: float | None = None
    unit_norm: bool = False
    qk_norm: bool = False
    unrotated: frozenset[int] = frozenset()
    permuted_qk: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
                     "num_kv_heads", "head_dim", "max_position"):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise CheckpointError(f"the model's {name} must be a positive integer, not {value!r}")
        if not (math.isfinite(self.norm_eps) and self.norm_eps > 0):
            raise CheckpointError(f"the model's norm_eps must be positive and finite, not {self.norm_eps:g}")
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.rope is not None and not (math.isfinite(self.rope.theta) and self.rope.theta > 0):
            raise CheckpointError(f"the rotary base must be positive and finite, not {self.rope.theta:g}")
        if self.rope is not None and (self.rope.dim % 2 or not 0 < self.rope.dim <= self.head_dim):
            raise CheckpointError(
                f"rotary embedding of {self.rope.dim} elements does not fit heads of {self.head_dim}"
            )
        if self.windows and len(self.windows) != self.num_layers:
            raise CheckpointError(f"{len(self.windows)} layer types for {self.num_layers} layers")
        for window in self.windows:
            if window is not None and window < 1:
                raise CheckpointError(f"a sliding window must be positive, not {window}")

    @classmethod
    def of(cls, config: DecoderConfig, **more: Any) -> Self:
        """A family's own config: these numbers and more."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(config)}, **more)

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None


class ConfigReader:
    """Typed look-ups in a checkpoint's config; a missing or wrong value is named."""

    def __init__(self, config: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._config, self._where, self._prefix = config, where, prefix

    @staticmethod
    def of(checkpoint: Checkpoint) -> ConfigReader:
        """Of config.json, or of the keys of the file's architecture in GGUF metadata."""
        if checkpoint.kind == "gguf":
            return ConfigReader(checkpoint.config, "GGUF metadata", f"{checkpoint.architecture}.")
        return ConfigReader(checkpoint.config, "config.json")

    def get(self, key: str, default: Any = None) -> Any:
        value = self._config.get(self._prefix + key)
        return default if value is None else value

    def error(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: {self._prefix}{key} {what}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be an integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, f"must be a number, not {value!r}")
        if not math.isfinite(number := _float(value)):
            raise self.error(key, f"must be finite, not {number:g}")
        return number

    def positive(self, key: str, default: float) -> float:
        if (value := self.number(key, default)) > 0:
            return value
        raise self.error(key, f"must be positive, not {value:g}")

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def activation(self, key: str, default: str) -> Activation:
        name = self.get(key, default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.error(key, f"= {name!r} is not supported (there are: {', '.join(ACTIVATIONS)})")
        return ACTIVATIONS[name]

    def refuse(self, key: str, allowed: tuple[Any, ...]) -> None:
        """Raise unless key is absent or holds an allowed value: what is not computed is not ignored."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.error(key, f"= {value!r} is not supported")

    def rope(
        self, head_dim: int, max_position: int, theta: float = 10000.0, kind: str | None = None
    ) -> RopeConfig:
        """Rotary embedding as config.json says it.

        transformers 5 writes rope_parameters (for each layer type, where they differ); before,
        rope_theta, rope_scaling and partial_rotary_factor stood apart. A rope_scaling written beside
        rope_parameters is what counts, as in transformers; what it leaves out is the parameters'.

        Args:
            theta: where the file has none.
            kind: the layer type whose parameters are wanted.
        """
        stated, added = self.get("rope_parameters") or {}, self.get("rope_scaling") or {}
        if kind is not None and isinstance(stated, Mapping) and kind in stated:
            stated = stated[kind]
        for key, value in (("rope_parameters", stated), ("rope_scaling", added)):
            if not isinstance(value, Mapping):
                raise self.error(key, f"must be an object, not {value!r}")
        scaling = dict(stated)
        theta = self._popped(scaling, "rope_theta", self.number("rope_theta", theta))
        share = self._popped(scaling, "partial_rotary_factor", self.number("partial_rotary_factor", 1.0))
        if added and kind != "sliding_attention":
            scaling = dict(added)
            theta = self._popped(scaling, "rope_theta", theta)
            share = self._popped(scaling, "partial_rotary_factor", share)
        scaling.setdefault("max_position_embeddings", max_position)
        original = self.integer("original_max_position_embeddings", max_position)
        scaling.setdefault("original_max_position_embeddings", original)
        return RopeConfig(theta, int(head_dim * share), scaling)

    def _popped(self, scaling: dict[str, Any], key: str, default: float) -> float:
        """A number that stands in an object of the file, taken out of it."""
        return ConfigReader({key: scaling.pop(key, default)}, self._where).number(key)

    def windows(self, num_layers: int, default: tuple[bool, ...] | None = None) -> tuple[int | None, ...]:
        """Each layer's window as config.json says it: layer_types, else default, with sliding_window."""
        kinds = self.get("layer_types")
        if kinds is not None:
            if not isinstance(kinds, list):
                raise self.error("layer_types", f"must be a list, not {kinds!r}")
            unknown = [k for k in kinds if k not in ("full_attention", "sliding_attention")]
            if unknown:
                raise self.error("layer_types", f"holds {unknown[0]!r}, which is not supported")
            if len(kinds) != num_layers:
                raise self.error("layer_types", f"holds {len(kinds)} entries for {num_layers} layers")
            slides = tuple(kind == "sliding_attention" for kind in kinds)
        else:
            slides = default or (True,) * num_layers
        if not any(slides) or self.get("sliding_window") is None:
            return ()
        window = self.integer("sliding_window")
        return tuple(window if slide else None for slide in slides)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def read_hf(checkpoint: Checkpoint, **changes: Any) -> DecoderConfig:
    """config.json with Llama's names; changes are the fields that a family reads differently."""
    read = ConfigReader.of(checkpoint)
    heads, hidden = read.integer("num_attention_heads"), read.integer("hidden_size")
    head_dim = read.integer("head_dim", hidden // max(heads, 1))
    max_position = read.integer("max_position_embeddings", 2048)
    found: dict[str, Any] = {
        "vocab_size": read.integer("vocab_size"),
        "hidden_size": hidden,
        "num_layers": read.integer("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": read.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "max_position": max_position,
        "tie_word_embeddings": read.flag("tie_word_embeddings"),
    }
    if "intermediate_size" not in changes:
        found["intermediate_size"] = read.integer("intermediate_size")
    if "activation" not in changes:
        found["activation"] = read.activation("hidden_act", "silu")
    if "norm_eps" not in changes:
        found["norm_eps"] = read.number("rms_norm_eps", 1e-6)
    if "rope" not in changes:
        found["rope"] = read.rope(head_dim, max_position)
    return DecoderConfig(**{**found, **changes})


def read_gguf(checkpoint: Checkpoint, **changes: Any) -> DecoderConfig:
    """GGUF metadata, whose keys are the same in every architecture but for their prefix."""
    read = ConfigReader.of(checkpoint)
    heads, hidden = read.integer("attention.head_count"), read.integer("embedding_length")
    head_dim = read.integer("attention.key_length", hidden // max(heads, 1))
    max_position = read.integer("context_length")
    eps = read.number("attention.layer_norm_rms_epsilon", read.number("attention.layer_norm_epsilon", 0.0))
    tokens = checkpoint.config.get("tokenizer.ggml.tokens", ())
    found: dict[str, Any] = {
        "vocab_size": read.integer("vocab_size", len(tokens)),
        "hidden_size": hidden,
        "num_layers": read.integer("block_count"),
        "num_heads": heads,
        "num_kv_heads": read.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position": max_position,
        "norm_eps": eps,
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
    }
    if "intermediate_size" not in changes:
        found["intermediate_size"] = read.integer("feed_forward_length")
    if "rope" not in changes:
        found["rope"] = gguf_rope(checkpoint, head_dim, max_position)
    return DecoderConfig(**{**found, **changes})


def gguf_rope(checkpoint: Checkpoint, head_dim: int, max_position: int) -> RopeConfig:
    """Rotary embedding as GGUF metadata say it; rope_freqs.weight is left to the loader."""
    read = ConfigReader.of(checkpoint)
    kind = read.get("rope.scaling.type", "none")
    scaling: dict[str, Any] = {
        "rope_type": {"none": "default"}.get(kind, kind),
        "max_position_embeddings": max_position,
        "original_max_position_embeddings": read.integer(
            "rope.scaling.original_context_length", max_position
        ),
    }
    if read.get("rope.scaling.factor") is not None:
        scaling["factor"] = read.number("rope.scaling.factor")
    if read.get("rope.scaling.attn_factor") is not None:  # which multiplies YaRN's own
        own = yarn_mscale(float(scaling.get("factor", 1.0))) if kind == "yarn" else 1.0
        scaling["attention_factor"] = own * read.number("rope.scaling.attn_factor")
    theta = read.number("rope.freq_base", 10000.0)
    return RopeConfig(theta, read.integer("rope.dimension_count", head_dim), scaling)
