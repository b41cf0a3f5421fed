"""Which file of families/ knows which architecture: each declares its FAMILY, and nothing else lists it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from octavo.checkpoints.base import Checkpoint
from octavo.errors import CheckpointError
from octavo.kernels.ops import Inputs, KVCache, KVSpec, Ops, Tensor

if TYPE_CHECKING:
    from octavo.models.loader import Loader

_PACKAGE = "octavo.models.families"


class Model(Protocol):
    """A loaded model: what its pages hold, and the forward pass over ops."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_position(self) -> int: ...

    def kv_specs(self, dtype: str) -> Sequence[KVSpec]: ...

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache, taps: Collection[int] = ()) -> Tensor:
        """Logits [R, vocab] of the batch's sampled rows.

        Args:
            taps: layers whose outputs are kept for whoever replays it (models.layers.tap_name).
        """
        ...


@runtime_checkable
class Embedder(Protocol):
    """A model whose hidden states can be read, for embeddings."""

    @property
    def hidden_size(self) -> int: ...

    def hidden(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        """Last hidden states [R, hidden_size] of the batch's sampled rows, as the head reads them."""
        ...


@runtime_checkable
class EncoderDecoder(Model, Protocol):
    """A model whose decoder reads, beside its own sequence, what an encoder made of another one."""

    @property
    def max_source(self) -> int:
        """Tokens of an encoder's input."""
        ...

    def encode(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        """Encode whole inputs: hidden states [T, hidden], and keys and values into the batch's slots.

        The pages of these slots are what ForwardBatch.cross_tables names when forward() runs.
        """
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture family.

    Attributes:
        hf: values of config.json's "model_type"; gguf: values of general.architecture.
        config: (checkpoint) -> the family's config; build: (config, loader) -> Model.
        names: our tensor names (transformers') -> GGUF's, with {i} for the layer and {e} for the
            expert; a name without its last part stands for all tensors of that module.
        ignored: patterns of tensors that a file may hold and nobody needs.
        encoder_decoder: build() makes an EncoderDecoder.
        matches: whether a checkpoint of that architecture is ours, where several families share one.
    """

    name: str
    hf: tuple[str, ...]
    config: Callable[[Checkpoint], Any]
    build: Callable[[Any, Loader], Model]
    gguf: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    matches: Callable[[Checkpoint], bool] = lambda checkpoint: True
    encoder_decoder: bool = False


@cache
def family_names() -> tuple[str, ...]:
    """Names of the files in families/."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)))


def family(name: str) -> Family:
    """The family that families/<name>.py declares."""
    found = getattr(importlib.import_module(f"{_PACKAGE}.{name}"), "FAMILY", None)
    if not isinstance(found, Family):
        raise TypeError(f"octavo/models/families/{name}.py declares no FAMILY")
    return found


def families() -> tuple[Family, ...]:
    """All families."""
    return tuple(family(name) for name in family_names())


def family_of(checkpoint: Checkpoint) -> Family:
    """The family that reads this checkpoint.

    Raises:
        CheckpointError: no family knows its architecture; the message lists those that exist.
    """
    wanted = checkpoint.architecture
    # Most files are called as what they read, so that one import is enough.
    for name in sorted(family_names(), key=lambda name: name != wanted):
        found = family(name)
        known = found.gguf if checkpoint.kind == "gguf" else found.hf
        if wanted in known and found.matches(checkpoint):
            return found
    all_known = sorted({n for f in families() for n in (f.gguf if checkpoint.kind == "gguf" else f.hf)})
    code = " and needs code from its own files, which Octavo never runs" * ("auto_map" in checkpoint.config)
    raise CheckpointError(
        f"architecture {wanted!r} is not supported{code} (supported: {', '.join(all_known)})"
    )
