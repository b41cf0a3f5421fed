"""gptq: columns rounded one after the other, each error made up for by the columns that are left.

What is made up follows from what the matrix is multiplied with on the calibration text: the inverse of
H = 2 X X^T, by its Cholesky factor. Source: Frantar et al. 2023 (GPTQ), algorithm 1 and section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import CheckpointError
from octavo.kernels.weight import F32Array
from octavo.quant.grid import Grid, Rounded, grid_of, nearest, size_of_groups
from octavo.quant.schemes.gptq import LOWEST_ZERO, STORED_BITS, settings_of, stored
from octavo.quant.writer import Choice, F64Array, Limits, Met, Tensors

_BLOCK = 128
"""Columns whose errors reach the others together."""


class Gptq:
    """A Writer."""

    limits = Limits(
        (4, 8, 3, 2),
        (128, 64, 32),
        rows=STORED_BITS,
        calibrated=True,
        zeros=True,
        obeys=("act_order", "damp"),
    )

    def settings(self, choice: Choice, left_out: Sequence[str]) -> dict[str, Any]:
        return settings_of(choice, act_order=choice.act_order)

    def write(self, stem: str, w: F32Array, choice: Choice, met: Met | None) -> Tensors:
        if met is None or not len(met.x):
            return stored(stem, nearest(stem, w, choice, LOWEST_ZERO), choice.bits)
        return stored(stem, gptq(stem, w, met.moments, choice), choice.bits)


def gptq(stem: str, w: F32Array, moments: F64Array, choice: Choice) -> Rounded:
    """The matrix [N, K] on its grid.

    Args:
        moments: H [K, K].

    Raises:
        CheckpointError: numbers too large for scales of 16 bits, or H is not finite.
    """
    n, k = w.shape
    squares = np.diag(moments)
    squares = np.where(squares <= 0, 1, squares)  # inputs that are always 0: nothing can be made up by them
    order = np.argsort(-squares, kind="stable") if choice.act_order else np.arange(k)
    left = w.T[order]  # [K, N]
    factor = _factor(stem, _ordered(moments, order, squares), choice.damp)
    group = size_of_groups(k, choice)
    q = np.empty((k, n), np.uint8)
    grids: list[Grid] = []
    size = group if group <= 2 * _BLOCK else _BLOCK
    for start in range(0, k, size):
        end = min(start + size, k)
        errors = np.empty((end - start, n), np.float32)
        for i in range(start, end):
            if i % group == 0:
                grids.append(grid_of(stem, left[i : i + group].T, choice, LOWEST_ZERO))
            grid = grids[-1]
            column = left[i][:, None]
            rounded = grid.integers(column)
            q[i] = rounded[:, 0]
            error = (column - grid.numbers(rounded))[:, 0] / factor[i, i]
            left[i + 1 : end] -= factor[i, i + 1 : end, None] * error
            errors[i - start] = error
        left[end:] -= factor[start:end, end:].T @ errors
    scale = np.concatenate([grid.scale for grid in grids], axis=1)
    zero = np.concatenate([grid.zero for grid in grids], axis=1).astype(np.int64)
    columns, g_idx = np.empty((n, k), np.uint8), np.empty(k, np.int32)
    columns[:, order] = q.T
    g_idx[order] = np.arange(k) // group
    return Rounded(columns, scale, zero, g_idx)


def _ordered(moments: F64Array, order: npt.NDArray[np.int64], squares: F64Array) -> F64Array:
    """A copy of H with its rows and columns in that order, and squares [K] as its diagonal."""
    h: F64Array = moments[np.ix_(order, order)]
    np.fill_diagonal(h, squares[order])
    return h


def _factor(stem: str, h: F64Array, damp: float) -> F32Array:
    """U of H^-1 = U^T U, upper triangular; the diagonal of H, which is lost, is raised until it has one.

    H turned about has a Cholesky factor L, and L turned about is the inverse of U.
    """
    if not np.isfinite(h).all():
        raise CheckpointError(
            f"tensor '{stem}.weight' is multiplied with numbers that are not finite on the calibration text"
        )
    squares = np.diag(h).copy()
    more = damp * np.mean(squares)
    for _ in range(4):
        np.fill_diagonal(h, squares + more)
        try:
            factor = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
        except np.linalg.LinAlgError:
            more *= 10
            continue
        del h
        upper = np.ascontiguousarray(factor, np.float64)
        del factor
        _invert(upper)
        return upper.astype(np.float32)
    raise CheckpointError(
        f"tensor '{stem}.weight': what it is multiplied with on the calibration text gives no inverse: raise "
        "--damp, or give a longer text"
    )


def _invert(upper: F64Array) -> None:
    """An upper triangular matrix in its place, by halves."""
    middle = len(upper) // 2
    if middle < _BLOCK // 2:
        upper[:] = np.linalg.inv(upper)
        return
    first, last = upper[:middle, :middle], upper[middle:, middle:]
    _invert(first)
    _invert(last)
    upper[:middle, middle:] = -(first @ upper[:middle, middle:]) @ last


WRITER = Gptq()
