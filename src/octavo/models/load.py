"""From a checkpoint to a model: the family that knows it, built on what the loader takes out."""

from __future__ import annotations

from octavo.checkpoints.base import Checkpoint
from octavo.errors import CheckpointError, OctavoError
from octavo.kernels.ops import Backend
from octavo.models.loader import Loader
from octavo.models.planned import PlannedLoader
from octavo.models.registry import Model, family_of
from octavo.quant.on_load import made_on_load

MAX_LAYERS = 10_000
LAYERS = frozenset(
    {
        "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "encoder_layers",
        "decoder_layers", "block_count"
    }
)  # fmt: skip
"""What config.json and GGUF call their number."""


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    dtype: str = "auto",
    context: int | None = None,
    quantization: str | None = None,
    loader: type[Loader] = Loader,
) -> tuple[Model, int]:
    """The checkpoint's model and the bytes of its packed weights; arguments as in Loader.

    Args:
        quantization: as EngineConfig has it.

    Raises:
        UnsupportedError: the checkpoint is of another kind than quantization says.
        CheckpointError: an unknown architecture, or config and tensors do not make a whole model.
    """
    family = family_of(checkpoint)
    names = family.names if checkpoint.kind == "gguf" else {}
    check_layers(checkpoint)
    load = loader(checkpoint, backend, names, dtype, context, made_on_load(quantization, checkpoint))
    try:
        model = family.build(family.config(checkpoint), load)
    except OctavoError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Of each family's numbers any may be of another type, or too large, where a file is not what it says.
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(
            f"{checkpoint.path.name} is no {family.name} model that can be made ({why})"
        ) from error
    load.finish(family.ignored)
    return model, load.nbytes


def check_layers(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for more layers than any model has: lists of them are made before a tensor is
    looked for."""
    for key, value in checkpoint.config.items():
        if key.rpartition(".")[2] in LAYERS and isinstance(value, int) and value > MAX_LAYERS:
            raise CheckpointError(f"{key} is {value}: models of at most {MAX_LAYERS} layers are loaded")


def outline_model(
    checkpoint: Checkpoint,
    backend: Backend,
    dtype: str = "auto",
    context: int | None = None,
    quantization: str | None = None,
) -> tuple[Model, int]:
    """The same of shapes alone (PlannedLoader), on a backend that plans.

    Raises:
        CheckpointError: as load_model.
    """
    return load_model(checkpoint, backend, dtype, context, quantization, PlannedLoader)
