"""awq: four bits rounded to nearest, once the columns that meet large activations were made larger.

The scales are the activations' mean size to a power that is searched for, and what lies beyond a share of
each group's range, searched for too, is cut off. Source: Lin et al. 2023 (AWQ), section 3.2, and its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import F32Array
from octavo.quant.grid import Rounded, grid_of, nearest, size_of_groups
from octavo.quant.schemes.awq import settings_of, stored
from octavo.quant.writer import Choice, Limits, Met, Tensors

_POWERS = np.arange(20) / 20
_SHARES = 1 - np.arange(11) / 20


class Awq:
    """A Writer, and Folding."""

    limits = Limits((4,), (128, 64, 32), rows={4: 8}, calibrated=True, folds=True, zeros=True, without=False)

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        return settings_of(choice, left_out)

    def write(self, stem: str, w: F32Array, choice: Choice, met: Met | None) -> Tensors:
        return stored(stem, awq(stem, w, met, choice))

    def scales(
        self, ws: Sequence[F32Array], met: Met, choice: Choice, ties: npt.NDArray[np.int64]
    ) -> F32Array:
        count = np.bincount(ties)
        size = np.bincount(ties, np.abs(met.x).mean(axis=0, dtype=np.float64)) / np.maximum(count, 1)
        size = np.maximum(size, size.max(initial=0) * 1e-4 + 1e-30)  # columns that meet next to nothing
        x = met.sample
        best, least = np.ones(len(ties), np.float32), np.inf
        for power in _POWERS:
            some = size**power
            scale = (some / np.sqrt(some.max() * some.min()))[ties].astype(np.float32)
            error = sum(_error(w, scale, x, choice) for w in ws)
            if error < least:
                best, least = scale, error
        return best


def awq(stem: str, w: F32Array, met: Met | None, choice: Choice) -> Rounded:
    """The matrix [N, K], whose columns were scaled, on grids that lose least on what it meets.

    Raises:
        CheckpointError: numbers too large for scales of 16 bits.
    """
    if met is None or not len(met.x):
        return nearest(stem, w, choice)
    n, k = w.shape
    group = size_of_groups(k, choice)
    scale, zero = np.empty((n, k // group), np.float32), np.empty((n, k // group), np.int64)
    q, x = np.empty((n, k), np.uint8), met.sample
    for g in range(k // group):
        columns = slice(g * group, (g + 1) * group)
        found = _cut(stem, w[:, columns], x[:, columns], choice)
        q[:, columns], scale[:, g], zero[:, g] = found
    return Rounded(q, scale, zero, (np.arange(k) // group).astype(np.int32))


def _error(w: F32Array, scale: F32Array, x: F32Array, choice: Choice) -> float:
    """Of w x, where w scale is rounded and x divided by scale."""
    rounded = nearest("w", w * scale, choice).dequantize() / scale
    return float(np.square(x @ (rounded - w).T).sum(dtype=np.float64))


def _cut(
    stem: str, w: F32Array, x: F32Array, choice: Choice
) -> tuple[F32Array, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(q [N, G], scale [N], zero [N]) of one group: each row's range cut where its error is least."""
    least = np.full(len(w), np.inf)
    q = np.empty_like(w)
    scale, zero = np.empty(len(w), np.float32), np.empty(len(w), np.float32)
    for share in _SHARES:
        grid = grid_of(stem, w, choice, share=float(share))
        rounded = grid.integers(w)
        error = np.square(x @ (grid.numbers(rounded) - w).T).sum(axis=0, dtype=np.float64)
        better = error < least
        least[better] = error[better]
        q[better], scale[better], zero[better] = rounded[better], grid.scale[better, 0], grid.zero[better, 0]
    return q, scale, zero


WRITER = Awq()
