"""FilledLoader: a model of the right shapes and arbitrary numbers, to be timed; no tensor is read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.ops import F32
from octavo.kernels.weight import Array, Layout, Weight
from octavo.models.planned import PlannedLoader

TEMPLATE = 1 << 20
"""Random bytes that are repeated: what kernels take does not depend on them."""
SPREAD = {
    Layout.U4: 4.6, Layout.U5: 9.2, Layout.S8: 74.0, Layout.U2: 8.0, Layout.U3: 42.0, Layout.K4: 258.0,
    Layout.K5: 527.0, Layout.K6: 1363.0, Layout.C4: 4997.0, Layout.F8: 4.0,
}  # fmt: skip
"""Of random codes of a layout, times their steps, about; of the others it is 1."""
CENTRE = {Layout.U4: 7.5, Layout.U5: 15.5, Layout.U2: 1.5, Layout.K4: 7.5, Layout.K5: 15.5}
"""Of random codes that are not below 0."""
F8_SMALL = 0x4F
"""Bits of an F8 number that are kept: none is NaN, none above 4."""

LARGEST_STEP = 63
"""Of K4 and K5."""


class FilledLoader(PlannedLoader):
    """Gives build() what PlannedLoader gives, with numbers such that activations stay about 1."""

    def weight(self, *args: Any, **named: Any) -> Weight:
        return filled(super().weight(*args, **named))

    def vector(self, name: str, length: int) -> F32:
        return np.ones_like(super().vector(name, length))

    def matrix(self, name: str, shape: tuple[int, int]) -> F32:
        return np.ones_like(super().matrix(name, shape))


def filled(outline: Weight) -> Weight:
    """A weight of an outline's form, with random codes and scales that give rows a norm of about 1."""
    layout, (n, k) = outline.layout, outline.shape
    rng = np.random.default_rng(0)
    values = _values(layout, outline.values, k, rng)
    scale = (
        None
        if outline.scale is None
        else _constant(outline.scale, 1 / (SPREAD.get(layout, 1.0) * math.sqrt(k)))
    )
    minimum = None
    if outline.minimum is not None and scale is not None:
        below = -CENTRE.get(layout, 0.0) * float(scale.flat[0])
        minimum = _constant(outline.minimum, below)
    zero = None if outline.zero is None else _constant(outline.zero, 8)
    return Weight(layout, (n, k), values, scale, minimum, zero=zero, order=outline.order)


def _values(layout: Layout, form: Array, k: int, rng: np.random.Generator) -> Array:
    """Random ones of a form's shape and type."""
    if layout in (Layout.F32, Layout.F16, Layout.BF16):
        numbers: npt.NDArray[Any] = rng.standard_normal(TEMPLATE // 4, np.float32) / np.float32(math.sqrt(k))
        return np.resize(numbers.astype(form.dtype), form.shape)
    codes = rng.integers(0, 256, TEMPLATE, np.uint8)
    if layout is Layout.F8:
        codes &= F8_SMALL | 0x80
    values = np.resize(codes, form.shape)
    if layout in (Layout.K4, Layout.K5):
        values[:, :, -2:] &= LARGEST_STEP
    return values.view(form.dtype)


def _constant(form: Array, value: float) -> Array:
    return np.full(form.shape, value, form.dtype)
