"""A model whose matrices stay in their file until they are met, and know what it calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import Checkpoint
from octavo.errors import CheckpointError, UnsupportedError
from octavo.kernels.ops import F32, UNSCALED, Activation, PackedWeight, Rotary, Scaling, Tensor
from octavo.kernels.reference import ReferenceBackend, ReferenceOps, ReferenceWeight
from octavo.kernels.weight import Layout, Weight, check_stack
from octavo.models.config import RopeConfig
from octavo.models.layers import LayerNorm, RMSNorm, Use
from octavo.models.load import load_model
from octavo.models.loader import Loader, WantedMatrix
from octavo.models.registry import Model
from octavo.quant import registry as formats

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Named(Weight):
    """Rows of a matrix of the file, whose numbers are read when they are needed.

    Attributes:
        name: as the file has it, "model.layers.0.mlp.up_proj.weight".
        read: the whole matrix, f32 [N, K], as whoever makes the new file has it.
        taken: which of its rows these are.
    """

    name: str = ""
    read: Callable[[str], F32] = lambda name: np.zeros((0, 0), np.float32)
    taken: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @staticmethod
    def of(name: str, shape: tuple[int, int], read: Callable[[str], F32]) -> Named:
        """The whole matrix."""
        return _named(shape, name, read, np.arange(shape[0]))

    def rows(self, index: I64 | slice) -> Weight:
        taken = self.taken[index]
        return _named((len(taken), self.shape[1]), self.name, self.read, taken)

    def transpose(self) -> Weight:
        return Weight.dense(np.ascontiguousarray(self.dequantize().T))

    def dequantize(self) -> F32:
        return self.read(self.name)[self.taken]


def _named(shape: tuple[int, int], name: str, read: Callable[[str], F32], taken: I64) -> Named:
    nothing = np.broadcast_to(np.zeros((), np.float32), shape)
    return Named(Layout.F32, shape, nothing, name=name, read=read, taken=taken)


class StoredWeight(ReferenceWeight):
    """A packed weight that is f32 while it is used, and no rows of which meet a rounded x.

    Attributes:
        stack: what it was packed of.
    """

    def __init__(self, stack: Sequence[Weight], gated: bool) -> None:
        check_stack(stack, gated)
        self.stack, self.gated = stack, gated
        self.parts = [(0, self.shape[0], False, None)]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(w.shape[0] for w in self.stack), self.stack[0].shape[1]

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def matrix(self) -> F32:  # type: ignore[override]  # an attribute of its parent
        return np.concatenate([w.dequantize() for w in self.stack])

    def named(self) -> list[Named]:
        """What it has of matrices of the file, in order; those that were made of several are not among it."""
        return [w for w in self.stack if isinstance(w, Named)]


class StoredBackend(ReferenceBackend):
    """Packs matrices as StoredWeight, which keeps what they are called in the file."""

    def pack(self, weights: Sequence[Weight], gated: bool = False, head: bool = False) -> StoredWeight:
        return StoredWeight(weights, gated)


class NormName(NamedTuple):
    """What the file calls a norm, and whether it stores w of a gain 1 + w."""

    module: str
    unit: bool


class Placed(NamedTuple):
    """Where the file has a matrix that the model asked for.

    Attributes:
        name: in the file; part: which of the matrices that are stacked there; None: it is one.
    """

    name: str
    part: int | None
    wanted: WantedMatrix


class NamingLoader(Loader):
    """A Loader whose weights are Named, and that keeps what the file calls norms.

    Attributes:
        matrices: name -> (shape as stored, use) of every matrix that the model has asked for.
        placed: the same by the model's names, and vectors: those of its vectors.
        norms: id of a gain -> its norm. The gains are kept alive in gains.
        rotaries: the tables of rotations, in the order in which the model asked.
    """

    read: Callable[[str], F32]

    def __init__(self, checkpoint: Checkpoint, *rest: object) -> None:
        super().__init__(checkpoint, *rest)  # type: ignore[arg-type]  # whatever the base takes
        self.matrices: dict[str, tuple[tuple[int, int], Use]] = {}
        self.placed: dict[str, Placed] = {}
        self.vectors: dict[str, str] = {}
        self.units: set[str] = set()
        self.rotaries: list[Rotary | None] = []
        self.columns: set[str] = set()
        self.norms: dict[int, NormName] = {}
        self.gains: list[F32] = []

    def _weight(self, wanted: WantedMatrix) -> Weight:
        tensor = self._take(wanted.name, wanted.stored)
        formats.get_format(tensor.format)  # which can be read
        self.matrices[tensor.name] = (wanted.stored, wanted.use)
        self.placed[wanted.name] = Placed(tensor.name, self._find(wanted.name)[1], wanted)
        if wanted.transposed:
            self.columns.add(tensor.name)
        named = Named.of(tensor.name, wanted.stored, self.read)
        whole = named.transpose() if wanted.transposed else named
        return whole if wanted.order is None else whole.rows(wanted.order)

    def vector(self, name: str, length: int) -> F32:
        self.vectors[name] = self._find(name)[0]
        return super().vector(name, length)

    def rotary(self, rope: RopeConfig | None, max_position: int) -> Rotary | None:
        self.rotaries.append(super().rotary(rope, max_position))
        return self.rotaries[-1]

    def rms_norm(self, name: str, length: int, eps: float, unit: bool = False) -> RMSNorm:
        norm = super().rms_norm(name, length, eps, unit)
        self._keep(norm.gain, name, unit)
        if unit:
            self.units.add(f"{name}.weight")
        return norm

    def layer_norm(self, name: str, length: int, eps: float, bias: bool = True) -> LayerNorm:
        norm = super().layer_norm(name, length, eps, bias)
        self._keep(norm.gain, name, unit=False)
        return norm

    def _keep(self, gain: F32, name: str, unit: bool) -> None:
        self.norms[id(gain)] = NormName(self._find(f"{name}.weight")[0].removesuffix(".weight"), unit)
        self.gains.append(gain)


@dataclass(frozen=True, slots=True, eq=False)
class StoredModel:
    """What load_stored() gives.

    Attributes:
        matrices: name -> (shape, use), of every matrix.
        columns: those that are stored as [K, N].
        norms: NamingLoader.norms.
        load: who has loaded it.
    """

    model: Model
    matrices: Mapping[str, tuple[tuple[int, int], Use]]
    columns: frozenset[str]
    norms: Mapping[int, NormName]
    load: NamingLoader


def load_stored(
    checkpoint: Checkpoint, read: Callable[[str], F32], context: int | None = None
) -> StoredModel:
    """The checkpoint's model, of which only norms and biases are read.

    Args:
        read: a matrix by its name, f32 [N, K].

    Raises:
        CheckpointError: config and tensors do not make a whole model.
        UnsupportedError: it is quantized already.
    """
    if checkpoint.config.get("quantization_config") is not None:
        raise UnsupportedError(
            f"{checkpoint.path.name} is quantized already: quantize the model that it was made of", "model"
        )
    kept: list[NamingLoader] = []

    class Loading(NamingLoader):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]  # whatever the base takes
            self.read = read
            kept.append(self)

    model, _ = load_model(checkpoint, StoredBackend(), "auto", context, None, Loading)
    load = kept[0]
    return StoredModel(model, load.matrices, frozenset(load.columns), load.norms, load)


def numbers(checkpoint: Checkpoint, name: str) -> F32:
    """A matrix of the file as f32; its pages are given back.

    Raises:
        CheckpointError: some of it is not finite.
    """
    tensor = checkpoint.tensors[name]
    found = np.array(formats.weight(tensor).dequantize(), np.float32)
    tensor.release()
    if not np.isfinite(found).all():
        raise CheckpointError(f"tensor {name!r} holds numbers that are not finite")
    return found


Meet = Callable[[StoredWeight, F32], None]


class WatchedOps(ReferenceOps):
    """The reference's ops, of which each projection is told to somebody before it is computed.

    Args:
        meet: called with a weight and the rows [T, K] that it is multiplied with.
    """

    exact = False
    """Nobody compares a sample's bits with those that it has alone."""

    def __init__(self, meet: Meet) -> None:
        self._meet = meet

    def linear(
        self, x: Tensor, weight: PackedWeight, bias: F32 | None = None,
        activation: Activation = Activation.NONE, residual: Tensor | None = None, scaling: Scaling = UNSCALED,
    ) -> Tensor:  # fmt: skip
        if isinstance(weight, StoredWeight):
            self._meet(weight, x.ref)
        return super().linear(x, weight, bias, activation, residual, scaling)
