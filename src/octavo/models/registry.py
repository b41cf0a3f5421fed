"""Which file knows which architecture. A family registers itself by declaring FAMILY in its file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from octavo.checkpoints.base import Checkpoint
from octavo.errors import CheckpointError
from octavo.kernels.ops import Inputs, KVCache, KVSpec, Ops, Tensor

if TYPE_CHECKING:
    from octavo.models.loader import Loader

_NOT_FAMILIES = {"config", "loader", "registry"}


class Model(Protocol):
    """A loaded model: what its pages hold, and the forward pass over ops."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_position(self) -> int: ...

    def kv_specs(self, dtype: str) -> Sequence[KVSpec]: ...

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        """Logits [R, vocab] of the batch's sampled rows."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture family.

    Attributes:
        hf: values of config.json's "model_type"; gguf: values of general.architecture.
        names: our tensor names (transformers') -> GGUF's, with {i} for the layer.
        config: (checkpoint) -> the family's config; build: (config, loader) -> Model.
        tiny_config: arguments of a transformers config for tests, small enough for a laptop.
    """

    name: str
    hf: tuple[str, ...]
    gguf: tuple[str, ...]
    names: Mapping[str, str]
    config: Callable[[Checkpoint], Any]
    build: Callable[[Any, Loader], Model]
    tiny_config: Callable[[], dict[str, Any]]


@cache
def families() -> tuple[Family, ...]:
    """All families, found by looking at the files beside this one."""
    package = importlib.import_module("octavo.models")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _NOT_FAMILIES)
    return tuple(importlib.import_module(f"octavo.models.{name}").FAMILY for name in names)


def family_of(checkpoint: Checkpoint) -> Family:
    """The family that reads this checkpoint.

    Raises:
        CheckpointError: no family knows its architecture; the message lists those that exist.
    """
    for family in families():
        if checkpoint.architecture in (family.gguf if checkpoint.kind == "gguf" else family.hf):
            return family
    known = sorted(n for f in families() for n in (f.gguf if checkpoint.kind == "gguf" else f.hf))
    raise CheckpointError(
        f"architecture {checkpoint.architecture!r} is not supported (supported: {', '.join(known)})"
    )
