"""Triton's products of one row against exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.kernels.cuda.gemm import Epilogue, TilePolicy
from octavo.kernels.cuda.gemv import row_product, serves
from octavo.kernels.ops import F32, Activation
from octavo.kernels.weight import Weight
from support.cuda import interpreted
from support.kernels import normal, random_weight

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KINDS = ("u4", "u4-min", "s8", "s8-min", "f16")


def row(x: F32, weights: list[Weight], gated: bool = False, **end: Any) -> F32:
    part = interpreted().pack(weights, gated).parts[0]
    width = part.rows // 2 if gated else part.rows
    y = torch.zeros((1, width))
    return row_product(torch.from_numpy(x), part, y, Epilogue(gated=gated, **end), 4).numpy()


def bound(x: F32, w: Weight) -> Any:
    """Half a step of 2^-14 of each block's power of two, and f32's rounding of the sums."""
    size = np.abs(w.dequantize()).astype(np.float64) + 1e-9
    if w.minimum is not None:
        size = size + 2 * np.repeat(np.abs(w.minimum.astype(np.float64)), 32, axis=1)
    if w.layout.value == "u4" and w.minimum is None and w.scale is not None:
        size = size + 16 * np.repeat(np.abs(w.scale.astype(np.float64)), 32, axis=1)
    blocks = np.abs(x).reshape(-1, 32).max(axis=1, keepdims=True)
    step = np.repeat(blocks * 2.0**-15, 32, axis=1).reshape(1, -1)
    rounding = step if w.layout.quantized else 0 * step
    return (rounding + 4e-7 * np.sqrt(x.size) * np.abs(x)) @ size.T


@pytest.mark.parametrize("k", [32, 96, 544, 1056])
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout(kind: str, k: int) -> None:
    rng = np.random.default_rng(1)
    w = random_weight(rng, kind, 37, k)
    x = normal(rng, 1, k) * rng.choice([1e-3, 1, 1e3], (1, k)).astype(np.float32)
    got = row(x, [w])
    assert (np.abs(got - x.astype(np.float64) @ w.dequantize().astype(np.float64).T) <= bound(x, w)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_eight_bits_are_exact(kind: str) -> None:
    """bf16 within 2^7 of the largest of their block: only sums round."""
    rng = np.random.default_rng(2)
    w = random_weight(rng, kind, 21, 256)
    x = rng.uniform(1, 128, (1, 256)) * rng.choice([-1, 1], (1, 256))
    seen = torch.tensor(x, dtype=torch.bfloat16).float().numpy()
    want = seen.astype(np.float64) @ w.dequantize().astype(np.float64).T
    sums = 4e-7 * 16 * np.abs(seen) @ (np.abs(w.dequantize()) + 16 * 0.1).T
    assert (np.abs(row(seen, [w]) - want) <= sums).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_epilogue(kind: str) -> None:
    rng = np.random.default_rng(3)
    gate, up = (random_weight(rng, kind, 40, 64) for _ in range(2))
    x, bias, rest = normal(rng, 1, 64), normal(rng, 80), normal(rng, 1, 40)
    tensors = {"bias": torch.from_numpy(bias), "residual": torch.from_numpy(rest)}
    a, b = (x @ w.dequantize().T for w in (gate, up))
    got = row(x, [gate, up], True, activation=Activation.RELU, scale=0.5, **tensors)
    want = np.maximum(a + bias[:40], 0) * (b + bias[40:]) * 0.5 + rest
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * np.abs(want).max())
    got = row(x, [gate], scale=0.5, softcap=3.0, residual=tensors["residual"])
    np.testing.assert_allclose(got, 3 * np.tanh(a * 0.5 / 3) + rest, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_none_is_not_lost(kind: str, bad: float) -> None:
    rng = np.random.default_rng(4)
    x = normal(rng, 1, 96)
    x[0, 40] = bad
    assert not np.isfinite(row(x, [random_weight(rng, kind, 9, 96)])).any()


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_numbers_next_to_nothing(kind: str) -> None:
    rng = np.random.default_rng(5)
    w = random_weight(rng, kind, 9, 64)
    assert (row(np.zeros((1, 64), np.float32), [w]) == 0).all()
    assert (np.abs(row(np.full((1, 64), 1e-38, np.float32), [w])) < 1e-30).all()


def test_who_has_a_row_of_its_own() -> None:
    """Not bit-exact mode, rounded activations, f32 over integers, or scales of 16 columns."""
    rng = np.random.default_rng(6)
    parts = {k: interpreted().pack([random_weight(rng, k, 8, 64)]).parts[0] for k in ("u4", "s8-by16", "f16")}
    assert [serves(part) for part in parts.values()] == [True, False, True]
    for policy, alone in (
        (TilePolicy(4), True),
        (TilePolicy(4, True), False),
        (TilePolicy(4, wide=True), False),
    ):
        assert policy.alone(parts["u4"]) is alone
    assert not TilePolicy(4, rounds=True).alone(parts["u4"])
    assert TilePolicy(4, wide=True).alone(parts["f16"])
