"""Weights rounded to layouts with scales in two levels, as methods that a model can be loaded by."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.kernels.outline import Outline, outline_of
from octavo.kernels.weight import F32Array, Layout, Weight
from octavo.quant.on_load import Method
from octavo.quant.registry import get_format

SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]
BITS = np.arange(8, dtype=np.uint8)[:, None]


def _grouped(w: F32Array) -> F32Array:
    """[N, K] -> [N, K / 256, 16, 16]: blocks of 256, halves of 32."""
    return w.reshape(len(w), -1, 16, 16)


def _steps(sizes: F32Array, most: int) -> tuple[Any, F32Array]:
    """Sizes [N, B, 16] as f16 scale [N, B] times whole steps of at most `most`."""
    scale = (sizes.max(axis=-1) / most + 1e-6).astype(np.float16)
    steps = np.clip(np.rint(sizes / scale[..., None].astype(np.float32)), 0, most)
    return scale, steps


def _two_bits(q: Any, n: int) -> Any:
    return np.bitwise_or.reduce((q.reshape(n, -1, 4, 8).astype(np.uint8) & 3) << SHIFTS, axis=2)


def u2(w: F32Array) -> Weight:
    n, groups = len(w), _grouped(w)
    low = -np.minimum(groups.min(axis=-1), 0)
    d, s = _steps((groups.max(axis=-1) + low) / 3, 15)
    least, m = _steps(low, 15)
    unit = np.maximum(d[..., None].astype(np.float32) * s, 1e-9)
    start = least[..., None].astype(np.float32) * m
    q = np.clip(np.rint((groups + start[..., None]) / unit[..., None]), 0, 3)
    steps = (s.astype(np.uint8) | m.astype(np.uint8) << 4).reshape(n, -1, 2)
    values = np.concatenate([_two_bits(q, n), steps], axis=-1)
    return Weight(Layout.U2, (n, w.shape[1]), values, d, -least)


def u3(w: F32Array) -> Weight:
    n, groups = len(w), _grouped(w)
    d, s = _steps(np.abs(groups).max(axis=-1) / 4, 31)
    unit = np.maximum(d[..., None].astype(np.float32) * s, 1e-9)
    q = (np.clip(np.rint(groups / unit[..., None]), -4, 3) + 4).astype(np.uint8).reshape(n, -1, 8, 4)
    third = np.bitwise_or.reduce((q >> 2) << BITS, axis=2)
    steps = (s + 32).astype(np.uint8).reshape(n, -1, 2)
    values = np.concatenate([_two_bits(q, n), third, steps], axis=-1)
    return Weight(Layout.U3, (n, w.shape[1]), values, d)


def k4(w: F32Array) -> Weight:
    return _of_format("Q4_K", w)


def k6(w: F32Array) -> Weight:
    return _of_format("Q6_K", w)


def _of_format(name: str, w: F32Array) -> Weight:
    form = get_format(name)
    return form.unpack(form.made(w), lambda: None)


def _method(name: str, make: Any) -> Method:
    def form(shape: tuple[int, int]) -> Outline:
        return outline_of(make(np.zeros((1, 256), np.float32))).resized(shape)

    return Method((name,), 256, make, form)


FEW_BITS = {make.__name__: _method(make.__name__, make) for make in (u2, u3, k4, k6)}
