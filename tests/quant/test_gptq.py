"""GPTQ: the integers that its paper's own loop gives, in the memory that the guide says."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.quant.grid import Rounded
from octavo.quant.writer import Choice, Met
from octavo.quant.writers.gptq import gptq

N, K = 24, 320


def inputs(tokens: int = 900) -> np.ndarray:
    """[T, K], with columns of many sizes that depend on each other."""
    rng = np.random.default_rng(3)
    mixed = rng.standard_normal((tokens, K)) @ rng.standard_normal((K, K)) / 18
    return (mixed * np.exp(rng.standard_normal(K))).astype(np.float32)


def weights() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((N, K)).astype(np.float32)


def one_column_at_a_time(w: np.ndarray, h: np.ndarray, rounded: Rounded, damp: float) -> np.ndarray:
    """Algorithm 1 of Frantar et al. 2023 without its two tricks: H^-1 is updated, and nothing is put off."""
    inverse = np.linalg.inv(h + damp * np.diag(h).mean() * np.eye(K))
    left, q = w.astype(np.float64), np.empty((N, K), np.int64)
    for i in range(K):
        scale, zero = rounded.scale[:, rounded.g_idx[i]], rounded.zero[:, rounded.g_idx[i]]
        q[:, i] = np.clip(np.rint(left[:, i] / scale) + zero, 0, 15)
        error = (left[:, i] - scale * (q[:, i] - zero)) / inverse[i, i]
        left[:, i:] -= error[:, None] * inverse[i, i:]
        inverse -= np.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return q


@pytest.mark.parametrize("symmetric", [True, False])
def test_integers_are_those_of_the_paper(symmetric: bool) -> None:
    """But where f32 and f64 round a tie apart, and what follows from it in that row."""
    w, met = weights(), Met(inputs())
    choice = Choice(4, -1, symmetric=symmetric, act_order=False)
    rounded = gptq("w", w, met.moments, choice)
    want = one_column_at_a_time(w, met.moments, rounded, choice.damp)
    assert (rounded.q == want).mean() >= 0.995
    assert (rounded.q == want).all(axis=1).mean() >= 0.8


@pytest.mark.parametrize("act_order", [True, False])
def test_inputs_that_are_always_zero_are_rounded_to_nearest(act_order: bool) -> None:
    x = inputs()
    x[:, 7] = 0
    rounded = gptq("w", weights(), Met(x).moments, Choice(4, -1, act_order=act_order))
    scale, zero = rounded.scale[:, 0], rounded.zero[:, 0]
    assert (np.abs(scale * (rounded.q[:, 7] - zero) - weights()[:, 7]) <= 0.51 * scale).all()


def test_inputs_that_are_not_finite_are_refused() -> None:
    x = inputs()
    x[3, 5] = np.inf
    with np.errstate(invalid="ignore"), pytest.raises(CheckpointError, match=r"'w.weight' is multiplied"):
        gptq("w", weights(), Met(x).moments, Choice(4, -1))


def test_memory() -> None:
    """Four square matrices at most, one of which LAPACK takes unseen."""
    moments = Met(inputs()).moments
    tracemalloc.start()
    gptq("w", weights(), moments, Choice(4, 64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak + moments.nbytes <= 3.2 * moments.nbytes
