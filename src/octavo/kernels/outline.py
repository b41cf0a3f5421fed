"""Outline: a weight of which only the form counts, for planning what a model takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import BLOCK, Array, F32Array, Layout, Weight


@dataclass(frozen=True, slots=True, eq=False)
class Outline(Weight):
    """A weight of which only the form counts: its arrays are zeros that take no memory, whatever their shape.

    For planning: it can be weighed (a planned backend's pack), cut and stacked, and nothing is computed.
    """

    @staticmethod
    def floats(shape: tuple[int, int], dtype: np.dtype[np.generic]) -> Outline:
        """Of a dense layout."""
        layout = next(layout for layout in (Layout.F32, Layout.F16, Layout.BF16) if layout.dtype == dtype)
        return Outline(layout, shape, _nothing(shape, dtype))

    @staticmethod
    def coded(layout: Layout, shape: tuple[int, int], columns: int) -> Outline:
        """Of S8, F8 or NF4, with f32 scales, so many a row."""
        n, k = shape
        sizes = {Layout.S8: (n, k // BLOCK, BLOCK), Layout.F8: (n, k), Layout.NF4: (n, k // 2)}
        scale = _nothing((n, columns), np.dtype(np.float32))
        return Outline(layout, shape, _nothing(sizes[layout], layout.dtype), scale)

    def resized(self, shape: tuple[int, int]) -> Outline:
        """Of the same format, with so many rows and columns."""
        (n, k), (_, width) = shape, self.shape

        def table(stored: Array | None) -> Array | None:
            return None if stored is None else _nothing((n, k // self.group), stored.dtype)

        values = _nothing((n, k * self.values.shape[1] // width, *self.values.shape[2:]), self.values.dtype)
        return Outline(self.layout, shape, values, table(self.scale), table(self.minimum))

    def rows(self, index: npt.NDArray[np.int64] | slice) -> Weight:
        count = len(range(*index.indices(self.shape[0]))) if isinstance(index, slice) else len(index)
        values = _nothing((count, *self.values.shape[1:]), self.values.dtype)
        scale, minimum = _like(self.scale, count), _like(self.minimum, count)
        return Outline(self.layout, (count, self.shape[1]), values, scale, minimum)

    def dequantize(self) -> F32Array:
        return np.broadcast_to(np.zeros((), np.float32), self.shape)

    def dense_f32(self) -> Weight:
        return Outline.floats(self.shape, np.dtype(np.float32))

    def transpose(self) -> Weight:
        dtype = self.values.dtype if self.scale is None else np.dtype(np.float32)
        return Outline.floats((self.shape[1], self.shape[0]), dtype)

    def widened(self) -> Weight:
        if self.layout is not Layout.U5:
            return self
        blocks = (self.shape[0], self.shape[1] // BLOCK, BLOCK)
        return Outline(Layout.S8, self.shape, _nothing(blocks, np.dtype(np.int8)), self.scale, self.minimum)

    def expanded(self, rows: int = 512) -> Weight:
        return Outline.floats(self.shape, np.dtype(np.float16)) if self.layout.coded else self


def outline_of(weight: Weight) -> Outline:
    """The same form without numbers."""
    values = _nothing(weight.values.shape, weight.values.dtype)
    return Outline(weight.layout, weight.shape, values, _like(weight.scale), _like(weight.minimum))


def _nothing(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _like(table: Array | None, rows: int | None = None) -> Array | None:
    if table is None:
        return None
    return _nothing((table.shape[0] if rows is None else rows, *table.shape[1:]), table.dtype)
