"""From a checkpoint to a model: the family that knows it, built on what the loader takes out."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.kernels.ops import Backend
from octavo.models.loader import Loader
from octavo.models.planned import PlannedLoader
from octavo.models.registry import Model, family_of


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    dtype: str = "auto",
    context: int | None = None,
    loader: type[Loader] = Loader,
) -> tuple[Model, int]:
    """The checkpoint's model and the bytes of its packed weights; arguments as in Loader.

    Raises:
        CheckpointError: an unknown architecture, or config and tensors do not make a whole model.
    """
    family = family_of(checkpoint)
    names = family.names if checkpoint.kind == "gguf" else {}
    load = loader(checkpoint, backend, names, dtype, context)
    model = family.build(family.config(checkpoint), load)
    load.finish(family.ignored)
    return model, load.nbytes


def outline_model(
    checkpoint: Checkpoint, backend: Backend, dtype: str = "auto", context: int | None = None
) -> tuple[Model, int]:
    """The same of shapes alone (PlannedLoader), on a backend that plans.

    Raises:
        CheckpointError: as load_model.
    """
    return load_model(checkpoint, backend, dtype, context, PlannedLoader)
