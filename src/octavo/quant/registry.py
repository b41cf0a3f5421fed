"""The registry of formats: what a file of formats/ holds as `FORMATS` can be read."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.checkpoints.base import StoredTensor
from octavo.errors import CheckpointError
from octavo.kernels.outline import Outline, outline_of
from octavo.kernels.weight import F32Array, Weight

_PACKAGE = "octavo.quant.formats"


@dataclass(frozen=True, slots=True)
class Format:
    """How a number format is stored.

    Attributes:
        name: as checkpoints spell it, "Q4_1".
        block: elements of a row that are stored together.
        dtype: NumPy dtype of one block; its item size is the bytes a block takes.
        unpack: blocks [N, K / block] of that dtype and the tensor's release -> Weight [N, K].
        make: numbers [N, K / block, block] into such blocks of zeros; None: nobody makes this format.
    """

    name: str
    block: int
    dtype: np.dtype[np.generic]
    unpack: Callable[[npt.NDArray[Any], Callable[[], None]], Weight]
    make: Callable[[F32Array, npt.NDArray[Any]], None] | None = None

    def made(self, numbers: F32Array) -> npt.NDArray[Any]:
        """Blocks [N, K / block] of numbers [N, K].

        Raises:
            CheckpointError: nobody makes this format, rows are not of whole blocks, or numbers are too large
                for its scales.
        """
        n, k = numbers.shape
        if self.make is None or k % self.block:
            raise CheckpointError(f"{self.name} of rows of {k} numbers cannot be made")
        blocks = np.zeros((n, k // self.block), self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            self.make(numbers.reshape(n, k // self.block, self.block), blocks)
        fields = [blocks[name] for name in self.dtype.names or ()] or [blocks]
        if not all(np.isfinite(f.astype(np.float32)).all() for f in fields if f.dtype.kind not in "iu"):
            raise CheckpointError(f"numbers are too large for {self.name}")
        return blocks

    @property
    def block_bytes(self) -> int:
        return int(self.dtype.itemsize)

    def weight(self, tensor: StoredTensor) -> Weight:
        """The tensor as a Weight [N, K]; a vector becomes [1, K]. A view where aligned.

        Raises:
            CheckpointError: more than two dimensions, or bytes that do not fit the shape.
        """
        if not 1 <= len(tensor.shape) <= 2:
            raise CheckpointError(f"tensor {tensor.name} of shape {list(tensor.shape)} is not a matrix")
        n, k = (1, *tensor.shape)[-2:]
        if k % self.block or n * k // self.block * self.block_bytes != tensor.data.nbytes:
            raise CheckpointError(
                f"tensor {tensor.name}: {tensor.data.nbytes} bytes are not {self.name} {list(tensor.shape)}"
            )
        blocks = tensor.data.view(self.dtype).reshape(n, k // self.block)
        if not blocks.flags.aligned:  # safetensors may start a tensor at any byte
            blocks = blocks.copy()
        return self.unpack(blocks, tensor.release)


@functools.cache
def _formats() -> dict[str, Format]:
    """By name, from the files of the folder."""
    found = pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)
    files = [importlib.import_module(f"{_PACKAGE}.{file.name}") for file in found]
    return {each.name: each for file in files for each in file.FORMATS}


def names() -> list[str]:
    """The formats that can be read."""
    return sorted(_formats())


def get_format(name: str) -> Format:
    """The format of that name.

    Raises:
        CheckpointError: no such format.
    """
    if name not in _formats():
        raise CheckpointError(f"the number format {name} is not supported; supported: {', '.join(names())}")
    return _formats()[name]


def weight(tensor: StoredTensor) -> Weight:
    """The tensor as a Weight [N, K], whatever its format.

    Raises:
        CheckpointError: unknown format (named together with the tensor), or a broken tensor.
    """
    try:
        format_ = get_format(tensor.format)
    except CheckpointError as error:
        raise CheckpointError(f"tensor {tensor.name}: {error}") from None
    return format_.weight(tensor)


def outline(name: str, shape: tuple[int, int]) -> Outline:
    """What weight() makes of a matrix of that format, without its numbers.

    Raises:
        CheckpointError: unknown format, or rows that are not of whole blocks.
    """
    format_ = get_format(name)
    if shape[1] % format_.block:
        raise CheckpointError(f"rows of {shape[1]} are not whole blocks of {format_.block}, as {name} needs")
    return _one_block(name).resized(shape)


@functools.cache
def _one_block(name: str) -> Outline:
    format_ = get_format(name)
    return outline_of(format_.unpack(np.zeros((1, 1), format_.dtype), lambda: None))


def vector(tensor: StoredTensor) -> F32Array:
    """A norm or bias as a fresh f32 array [K]; any format, dequantized."""
    if len(tensor.shape) != 1:
        raise CheckpointError(f"tensor {tensor.name} of shape {list(tensor.shape)} is not a vector")
    return np.array(weight(tensor).dequantize()[0])
