"""From a checkpoint to a model: the family that knows it, built on what the loader takes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Backend
from octavo.models.loader import Loader
from octavo.models.planned import PlannedLoader
from octavo.models.registry import Family, Model, family_of


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    dtype: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    context: int | None = None,
) -> tuple[Model, int]:
    """The checkpoint's model and the bytes of its packed weights; arguments as in Loader.

    Raises:
        CheckpointError: an unknown architecture, or config and tensors do not make a whole model.
    """
    family = family_of(checkpoint)
    loader = Loader(checkpoint, backend, _names(family, checkpoint), dtype, progress, context)
    return _build(family, checkpoint, loader)


def outline_model(
    checkpoint: Checkpoint, backend: Backend, dtype: str = "auto", context: int | None = None
) -> tuple[Model, int]:
    """The same of shapes alone (PlannedLoader), on a backend that plans.

    Raises:
        CheckpointError: as load_model.
    """
    family = family_of(checkpoint)
    loader = PlannedLoader(checkpoint, backend, _names(family, checkpoint), dtype, context)
    return _build(family, checkpoint, loader)


def _names(family: Family, checkpoint: Checkpoint) -> Mapping[str, str]:
    return family.names if checkpoint.kind == "gguf" else {}


def _build(family: Family, checkpoint: Checkpoint, loader: Loader) -> tuple[Model, int]:
    model = family.build(family.config(checkpoint), loader)
    loader.finish(family.ignored)
    return model, loader.nbytes
