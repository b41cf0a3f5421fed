"""A GGUF file's header of a folder's config, and where each of its tensors goes: by the loaders of both.

The family builds its model twice, of the folder and of a GGUF file that is only described; what the two ask
for under one name says how rows are moved. What such a file would not give back is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from octavo.checkpoints.base import Checkpoint, LazyTensors, StoredTensor
from octavo.errors import CheckpointError, OctavoError, UnsupportedError
from octavo.kernels.ops import F32
from octavo.models.config import DecoderConfig, RopeConfig
from octavo.models.registry import Family, families, family_of
from octavo.models.rotary import SCALINGS
from octavo.quantize.stored import NamingLoader, StoredBackend, StoredModel

_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "max_position": "context_length",
    "softcap": "attn_logit_softcapping",
    "logit_softcap": "final_logit_softcapping",
    "num_experts": "expert_count",
    "top_k": "expert_used_count",
    "expert_size": "expert_feed_forward_length",
    "shared_size": "expert_shared_feed_forward_length",
}
"""Fields of configs -> keys."""
_MOVED = ("permuted_qk", "unit_norm", "rope", "sliding_rope")
"""Fields that differ by how a file stores things, or that are compared as what they give."""
LONGEST = 4096
"""Positions whose rotations are compared."""


@dataclass(frozen=True, slots=True)
class Described:
    """A GGUF file that is not there (checkpoints.base.Checkpoint): its metadata, and names of tensors."""

    path: Path
    architecture: str
    config: dict[str, Any]
    tensors: Mapping[str, StoredTensor]
    kind: str = "gguf"
    cut: tuple[int, int] | None = None

    def content_hash(self) -> str:
        raise CheckpointError(f"{self.path.name} is not written yet")

    def forget_tokenizer(self) -> None: ...

    def close(self) -> None: ...


class DescribingLoader(NamingLoader):
    """A NamingLoader of a Described file: whatever the model asks for has the shape that it asks for."""

    factors: F32 | None = None

    def __init__(self, checkpoint: Checkpoint, *rest: object) -> None:
        super().__init__(checkpoint, *rest)
        self.read = lambda name: np.broadcast_to(np.float32(0), self.matrices[name][0])

    def _take(self, name: str, shape: tuple[int, ...], stored: str | None = None) -> StoredTensor:
        found = stored or self._find(name)[0]
        size = math.prod(shape) if len(shape) == 1 else 0
        return StoredTensor(found, shape, "F32", np.zeros(4 * size, np.uint8), lambda: None)

    def _factors(self, stored: str, length: int) -> F32:
        if self.factors is None or self.factors.shape != (length,):
            raise CheckpointError(f"{stored} is not made here")
        return self.factors


@dataclass(frozen=True, slots=True)
class Target:
    """What load is to become.

    Attributes:
        metadata: of the model's numbers. factors: of rotations (rope_freqs.weight); None: there are none.
        load: what its family asks of such a file.
    """

    metadata: dict[str, Any]
    factors: F32 | None
    load: NamingLoader


def target_of(checkpoint: Checkpoint, stored: StoredModel) -> Target:
    """The GGUF file of a folder.

    Raises:
        UnsupportedError: GGUF has no place for all that the folder says.
    """
    family = family_of(checkpoint)
    goal = _goal(family)
    config: DecoderConfig = family.config(checkpoint)
    name = goal.gguf[0]
    metadata: dict[str, Any] = {"general.architecture": name}
    metadata |= {f"{name}.{key}": value for key, value in _numbers(config, checkpoint).items()}
    factors = _rope(config.rope, name, metadata)
    try:
        load, again = _describe(checkpoint, stored, goal, metadata, factors)
    except UnsupportedError:
        raise
    except OctavoError as error:
        raise UnsupportedError(f"GGUF cannot say all of {checkpoint.path.name}: {error}", "model") from None
    _compare(checkpoint, config, again, stored.load, load)
    return Target(metadata, factors, load)


def _goal(family: Family) -> Family:
    """The family that reads the GGUF files of one: itself, or whose build it has (Mistral's are Llama's)."""
    if family.gguf:
        return family
    for other in families():
        if other.gguf and other.build is family.build and other.name == "llama":
            return other
    raise UnsupportedError(f"GGUF files of the family {family.name} are not read here, nor made", "model")


def _numbers(config: DecoderConfig, checkpoint: Checkpoint) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, key in _KEYS.items():
        value = getattr(config, field, None)
        if value is not None and not (key.startswith("expert") and value == 0):
            found[key] = float(value) if "softcap" in field else value
    found["attention.key_length"] = found["attention.value_length"] = config.head_dim
    norm = "layer_norm_rms_epsilon" if "rms_norm_eps" in checkpoint.config else "layer_norm_epsilon"
    found[f"attention.{norm}"] = float(config.norm_eps)
    if window := next((w for w in config.windows if w is not None), None):
        found["attention.sliding_window"] = window
    return found


def _rope(rope: RopeConfig | None, name: str, metadata: dict[str, Any]) -> F32 | None:
    """Adds a rotation's keys; the factors by which frequencies are divided where that is Llama 3's kind."""
    if rope is None:
        return None
    metadata[f"{name}.rope.freq_base"] = float(rope.theta)
    metadata[f"{name}.rope.dimension_count"] = rope.dim
    kind = rope.scaling.get("rope_type", rope.scaling.get("type", "default"))
    if kind == "llama3":
        plain, scaled = (
            SCALINGS[name](rope.dim, rope.theta, 1, rope.scaling)[0] for name in ("default", kind)
        )
        return plain / scaled
    if kind != "default":
        metadata[f"{name}.rope.scaling.type"] = kind
        metadata[f"{name}.rope.scaling.factor"] = float(rope.scaling.get("factor", 1.0))
        original = rope.scaling.get("original_max_position_embeddings")
        if kind == "yarn" and isinstance(original, int):
            metadata[f"{name}.rope.scaling.original_context_length"] = original
    return None


def _describe(
    checkpoint: Checkpoint, stored: StoredModel, goal: Family, metadata: dict[str, Any], factors: F32 | None
) -> tuple[NamingLoader, DecoderConfig]:
    """The file's tensors as the goal asks for them, and the config that it reads."""
    makers = {} if factors is None else {"rope_freqs.weight": _nothing}
    described = Described(checkpoint.path, goal.gguf[0], metadata, LazyTensors(makers))
    names = DescribingLoader(described, StoredBackend(), goal.names)
    held = {names._find(name)[0]: _nothing for name in (*stored.load.placed, *stored.load.vectors)}
    described = Described(checkpoint.path, goal.gguf[0], metadata, LazyTensors(makers | held))
    load = DescribingLoader(described, StoredBackend(), goal.names, "auto", stored.load.context)
    load.factors = factors
    config: DecoderConfig = goal.config(described)
    goal.build(config, load)
    return load, config


def _nothing() -> StoredTensor:
    raise CheckpointError("a tensor that is only described was read")


def _compare(
    checkpoint: Checkpoint, config: DecoderConfig, again: DecoderConfig, was: NamingLoader, now: NamingLoader
) -> None:
    """Raise UnsupportedError where the file would be another model."""
    names = [field.name for field in fields(again) if field.name not in _MOVED]
    wrong = [n for n in names if not _alike(getattr(config, n, None), getattr(again, n))]
    for one, other in zip(was.rotaries, now.rotaries, strict=True):
        if (one is None) != (other is None):
            wrong.append("rope")
        elif one is not None and other is not None:
            near = one.interleaved == other.interleaved and np.allclose(one.cos, other.cos, atol=1e-4)
            wrong += [] if near and np.allclose(one.sin, other.sin, atol=1e-4) else ["rope"]
    for name in was.placed.keys() ^ now.placed.keys() | was.vectors.keys() ^ now.vectors.keys():
        wrong.append(name)
    if wrong:
        raise UnsupportedError(
            f"GGUF has no place here for all of {checkpoint.path.name}: {', '.join(sorted(set(wrong))[:4])}",
            "model",
        )


def _alike(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other
