"""From a checkpoint to a model: the family that knows it, built on what the loader takes out."""

from __future__ import annotations

from collections.abc import Callable

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Backend
from octavo.models.loader import Loader
from octavo.models.registry import Model, family_of


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
    names = family.names if checkpoint.kind == "gguf" else {}
    loader = Loader(checkpoint, backend, names, dtype, progress, context)
    model = family.build(family.config(checkpoint), loader)
    loader.finish(family.ignored)
    return model, loader.nbytes
