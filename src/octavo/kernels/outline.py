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
    def coded(
        layout: Layout, shape: tuple[int, int], columns: int, wide: bool = True, zeros: bool = False
    ) -> Outline:
        """Of S8, U4, F8, NF4 or FP4, with so many scales a row, f32 (wide) or f16, perhaps zero points."""
        n, k = shape
        sizes = {
            Layout.S8: (n, k // BLOCK, BLOCK),
            Layout.U4: (n, k // BLOCK, BLOCK // 2),
            Layout.F8: (n, k),
            Layout.NF4: (n, k // 2),
            Layout.FP4: (n, k // 2),
        }
        scale = _nothing((n, columns), np.dtype(np.float32 if wide else np.float16))
        zero = _nothing((n, columns), np.dtype(np.uint8)) if zeros else None
        return Outline(layout, shape, _nothing(sizes[layout], layout.dtype), scale, zero=zero)

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
        scale, minimum, zero = (_like(t, count) for t in (self.scale, self.minimum, self.zero))
        return Outline(
            self.layout, (count, self.shape[1]), values, scale, minimum, zero=zero, order=self.order
        )

    def dequantize(self) -> F32Array:
        return np.broadcast_to(np.zeros((), np.float32), self.shape)

    def dense_f32(self) -> Weight:
        return Outline.floats(self.shape, np.dtype(np.float32))

    def transpose(self) -> Weight:
        dtype = self.values.dtype if self.scale is None else np.dtype(np.float32)
        return Outline.floats((self.shape[1], self.shape[0]), dtype)

    def widened(self) -> Weight:
        if self.layout is not Layout.U5 and not self.layout.stepped:
            return self
        n, k = self.shape
        layout = Layout.U4 if self.layout is Layout.K4 else Layout.S8
        each = BLOCK if layout is Layout.S8 else BLOCK // 2
        q, scale, minimum = _nothing((n, k // BLOCK, each), layout.dtype), self.scale, self.minimum
        if self.layout.stepped:
            by_16 = self.layout in (Layout.U2, Layout.U3, Layout.K6)
            scale = _nothing((n, k // (16 if by_16 else BLOCK)), np.dtype(np.float32))
            minimum = None if minimum is None else scale
        return Outline(layout, self.shape, q, scale, minimum, order=self.order)

    def with_minima(self) -> Weight:
        if self.zero is None:
            return self
        minimum = _nothing(self.zero.shape, np.dtype(np.float32))
        return Outline(self.layout, self.shape, self.values, self.scale, minimum, order=self.order)


def outline_of(weight: Weight) -> Outline:
    """The same form without numbers."""
    values = _nothing(weight.values.shape, weight.values.dtype)
    scale, minimum, zero = (_like(t) for t in (weight.scale, weight.minimum, weight.zero))
    return Outline(weight.layout, weight.shape, values, scale, minimum, zero=zero, order=weight.order)


def _nothing(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _like(table: Array | None, rows: int | None = None) -> Array | None:
    if table is None:
        return None
    return _nothing((table.shape[0] if rows is None else rows, *table.shape[1:]), table.dtype)
