"""Loader: from a checkpoint's tensors to packed weights, checked by name and shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import Checkpoint, StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.ops import F32, Backend, PackedWeight
from octavo.kernels.weight import Array, Weight
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.quant import registry as formats

_DENSE: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
DTYPES = ("auto", *_DENSE)


class Loader:
    """What a family's build() asks for weights.

    Args:
        names: our names -> the file's names, with {i} for the layer; empty if they are the same.
        dtype: "auto" keeps what is stored; otherwise everything is dequantized to it.
        progress: called with (tensors taken, tensors in the file).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        names: Mapping[str, str],
        dtype: str = "auto",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._checkpoint, self.backend, self._names = checkpoint, backend, names
        self._dense = None if dtype == "auto" else _DENSE[dtype]
        self._progress, self._taken = progress, 0
        self.nbytes = 0

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._checkpoint.tensors

    def weight(self, name: str, shape: tuple[int, int], order: npt.NDArray[np.int64] | None = None) -> Weight:
        """The matrix called name, which must have this shape; order rearranges its rows."""
        weight = formats.weight(self._take(name, shape))
        if order is not None:
            weight = weight.rows(order)
        if self._dense is not None:
            dense: Array = weight.dequantize()
            weight = Weight.dense(dense.astype(self._dense, copy=False), weight.release)
        return weight

    def pack(self, weights: list[Weight], gated: bool = False) -> PackedWeight:
        """Stack and pack. Weights of different layouts meet in f32, the one layout that holds both."""
        layouts = {(w.layout, w.minimum is None) for w in weights}
        if len(layouts) > 1:
            weights = [Weight.dense(w.dequantize(), w.release) for w in weights]
        packed = self.backend.pack(weights, gated)
        self.nbytes += packed.nbytes
        return packed

    def linear(self, name: str, shape: tuple[int, int], bias: bool = False) -> Linear:
        """The projection name.weight [N, K], with name.bias [N]."""
        packed = self.pack([self.weight(f"{name}.weight", shape)])
        return Linear(packed, self.vector(f"{name}.bias", shape[0]) if bias else None)

    def vector(self, name: str, length: int) -> F32:
        """A small f32 vector: norm gains, biases."""
        return formats.vector(self._take(name, (length,)))

    def rms_norm(self, name: str, length: int, eps: float) -> RMSNorm:
        return RMSNorm(self.vector(f"{name}.weight", length), eps)

    def _stored_name(self, name: str) -> str:
        if self._checkpoint.kind == "hf":
            return name
        parts = name.split(".")
        layer = next((p for p in parts if p.isdigit()), "")
        key = ".".join("{i}" if p.isdigit() else p for p in parts)
        if key not in self._names:
            raise CheckpointError(f"the family has no {self._checkpoint.kind} name for tensor {name!r}")
        return self._names[key].replace("{i}", layer)

    def _take(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = self._stored_name(name)
        tensor = self._checkpoint.tensors.get(stored)
        if tensor is None:
            raise CheckpointError(f"tensor {stored!r} is missing (expected shape {list(shape)})")
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"tensor {stored!r} has shape {list(tensor.shape)}, expected {list(shape)}")
        self._taken += 1
        if self._progress is not None:
            self._progress(self._taken, len(self._checkpoint.tensors))
        return tensor
