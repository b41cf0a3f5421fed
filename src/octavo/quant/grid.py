"""Grids of integers that numbers are rounded to: w ~ scale (q - zero), 0 <= q < 2^bits, for each group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import F32Array
from octavo.quant.writer import Choice, half

I64 = npt.NDArray[np.int64]


class Grid(NamedTuple):
    """scale [..., 1] f32, each a number of 16 bits, and zero [..., 1]."""

    scale: F32Array
    zero: F32Array
    most: int

    def integers(self, w: F32Array) -> F32Array:
        """The nearest q of each number."""
        return np.asarray(np.clip(np.rint(w / self.scale) + self.zero, 0, self.most), np.float32)

    def numbers(self, q: F32Array) -> F32Array:
        """What q stands for."""
        return np.asarray(self.scale * (q - self.zero), np.float32)


def grid_of(stem: str, w: F32Array, choice: Choice, lowest: int = 0, share: float = 1.0) -> Grid:
    """The grid of groups [..., G] from their ranges, 0 included.

    Symmetric ones have 2^bits - 1 steps from the largest |w| below 0 to above it, and the centre 2^(bits - 1)
    (Frantar et al. 2023, and its code).

    Args:
        lowest: a zero point may have.
        share: of the range, which is cut off beyond.

    Raises:
        CheckpointError: numbers too large for scales of 16 bits.
    """
    most = 2**choice.bits - 1
    low = np.minimum(w.min(axis=-1, keepdims=True), 0) * np.float32(share)
    high = np.maximum(w.max(axis=-1, keepdims=True), 0) * np.float32(share)
    if choice.symmetric:
        high = np.maximum(-low, high)
        scale = half(stem, 2 * high / most).astype(np.float32)
        return Grid(scale, np.full_like(scale, (most + 1) // 2), most)
    scale = half(stem, (high - low) / most).astype(np.float32)
    return Grid(scale, np.clip(np.rint(-low / scale), lowest, most), most)


class Rounded(NamedTuple):
    """A matrix on a grid: q [N, K], scale and zero [N, K/G], and each column's group, g_idx [K]."""

    q: npt.NDArray[np.uint8]
    scale: F32Array
    zero: I64
    g_idx: npt.NDArray[np.int32]

    def dequantize(self) -> F32Array:
        q = self.q.astype(np.float32) - self.zero.astype(np.float32)[:, self.g_idx]
        return q * self.scale[:, self.g_idx]


def size_of_groups(columns: int, choice: Choice) -> int:
    return columns if choice.group == -1 else choice.group


def nearest(stem: str, w: F32Array, choice: Choice, lowest: int = 0) -> Rounded:
    """Each number of [N, K] rounded to its group's grid."""
    n, k = w.shape
    group = size_of_groups(k, choice)
    grid = grid_of(stem, w.reshape(n, k // group, group), choice, lowest)
    q = grid.integers(w.reshape(n, k // group, group)).reshape(n, k).astype(np.uint8)
    g_idx = (np.arange(k) // group).astype(np.int32)
    return Rounded(q, grid.scale[..., 0], grid.zero[..., 0].astype(np.int64), g_idx)
