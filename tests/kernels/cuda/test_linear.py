"""Triton's products against exact arithmetic, for every layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from octavo.errors import CheckpointError
from octavo.kernels.cuda import integer
from octavo.kernels.ops import (
    F32,
    Activation,
    Inputs,
    Ops,
    Scaling,
    Tensor,
)
from octavo.kernels.reference_math import round_to_int8
from octavo.kernels.weight import Layout, Weight
from support.cuda import REFERENCE, by_reference, interpreted, run
from support.kernels import CODED, LAYOUTS, STEPPED, batch_of, normal, random_weight, tokens_batch

# NumPy warns of infinities under the interpreter; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def linear(backend: object, x: F32, weights: list[Weight], gated: bool = False, **options: object) -> F32:
    packed = backend.pack(weights, gated)  # type: ignore[attr-defined]

    def apply(ops: Ops, _: Inputs, t: list[Tensor]) -> Tensor:
        rest = {"residual": t[1]} if len(t) > 1 else {}
        return ops.linear(t[0], packed, **options, **rest)  # type: ignore[arg-type]

    residual = [options.pop("residual")] if "residual" in options else []
    return run(backend, tokens_batch(len(x)), apply, x, *residual)  # type: ignore[arg-type]


def check_against_exact(got: F32, x: F32, w: Weight, rounded: bool) -> None:
    """Rounding errors of a sum of K terms in f32, and of nothing else."""
    seen = (round_to_int8(x, w.order) if rounded and w.layout.quantized else x).astype(np.float64)
    # scale * q and the minimum are added up apart, so each counts with its own size
    size = np.abs(w.dequantize()).astype(np.float64)
    if w.minimum is not None:
        size = size + 2 * np.repeat(np.abs(w.minimum.astype(np.float64)), w.group, axis=1)
    if w.layout.value == "u4" and w.minimum is None and w.scale is not None:
        size = size + 32 * np.repeat(np.abs(w.scale.astype(np.float64)), w.group, axis=1)
    bound = 4e-7 * np.sqrt(x.shape[1]) * (np.abs(seen) @ size.T) + 1e-30
    assert (np.abs(got - seen @ w.dequantize().astype(np.float64).T) <= bound).all()


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_layout(kind: str, rounds: bool) -> None:
    rng = np.random.default_rng(1)
    w = random_weight(rng, kind, 37, 96)
    for rows in (1, 33):
        x = normal(rng, rows, 96) * rng.uniform(0.01, 30, (rows, 1)).astype(np.float32)
        check_against_exact(linear(interpreted(rounds=rounds), x, [w]), x, w, rounds)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("kind", STEPPED)
def test_scales_in_two_levels(kind: str, rounds: bool) -> None:
    """They are met in a layout of one level, most as bytes with scales, and minima, of 16 columns."""
    rng = np.random.default_rng(1)
    w = random_weight(rng, kind, 37, 256)
    packed = interpreted().pack([w]).parts[0]
    met = {
        "u2": (Layout.S8, 16, False),
        "u3": (Layout.S8, 16, True),
        "k4": (Layout.U4, 32, False),
        "k5": (Layout.S8, 32, False),
        "k6": (Layout.S8, 16, True),
    }
    want = met.get(kind, (Layout.S8, 32, True))
    assert (packed.layout, packed.group, packed.minimum is None) == want
    for rows in (1, 33):
        x = normal(rng, rows, 256) * rng.uniform(0.01, 30, (rows, 1)).astype(np.float32)
        check_against_exact(linear(interpreted(rounds=rounds), x, [w]), x, w.widened(), rounds)
    batch, backend = replace(tokens_batch(37), token_ids=np.arange(37, dtype=np.int32)), interpreted()
    table = backend.pack([w])
    got = run(backend, batch, lambda ops, inputs, _: ops.embed(inputs, table))
    np.testing.assert_array_equal(got, w.dequantize())


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("kind", CODED)
def test_codes_of_floats(kind: str, rounds: bool) -> None:
    """x stays as it is. 320 columns: two blocks of 128 and a half, five of 64."""
    rng = np.random.default_rng(1)
    w = random_weight(rng, kind, 37, 320)
    for rows in (1, 33):
        x = normal(rng, rows, 320) * rng.uniform(0.01, 30, (rows, 1)).astype(np.float32)
        check_against_exact(linear(interpreted(rounds=rounds), x, [w]), x, w, rounds)


def test_an_odd_number_of_columns_of_f8() -> None:
    rng = np.random.default_rng(1)
    for kind, k in (("f8", 37), ("f8-blocks", 165)):
        w, x = random_weight(rng, kind, 18, k), normal(rng, 3, k)
        check_against_exact(linear(interpreted(), x, [w]), x, w, False)


def test_every_code_of_f8() -> None:
    """Through the product and through widening: subnormals, both zeros, the largest. NaN is refused."""
    codes = np.arange(256, dtype=np.uint8)
    codes[[127, 255]] = 0
    half, stored = np.full((256, 1), 0.5, np.float32), ml_dtypes.float8_e4m3fn
    w = Weight(Layout.F8, (256, 1), codes.view(stored)[:, None], half)
    want = 0.5 * codes.view(stored).astype(np.float32)
    for rows in (1, 256):
        got = linear(interpreted(), np.ones((rows, 1), np.float32), [w])
        np.testing.assert_array_equal(got, np.tile(want, (rows, 1)))
    for nan in (127, 255):
        broken = codes.copy()
        broken[9] = nan
        with pytest.raises(CheckpointError, match="holds NaN"):
            interpreted().pack([Weight(Layout.F8, (256, 1), broken.view(stored)[:, None], half)])


@pytest.mark.parametrize("kind", ["f32", "u4-min", "s8-by16", "f8-blocks"])
def test_splits_of_k(kind: str) -> None:
    """A busy device's tiles, an idle one's splits."""
    rng = np.random.default_rng(2)
    w, x = random_weight(rng, kind, 20, 1056), normal(rng, 3, 1056)
    for sms, splits in ((1, 2), (16, 5)):
        backend = interpreted(sms=sms, exact=kind == "f32")
        assert backend.policy.tiles(3, 20, 1056, w.layout).splits == splits
        check_against_exact(linear(backend, x, [w]), x, w, False)


@pytest.mark.parametrize("kind", ["f32", "s8", "u4-min", "f8-blocks", "nf4"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("splits", [False, True])
def test_epilogue(kind: str, gated: bool, splits: bool) -> None:
    rng = np.random.default_rng(3)
    backend = interpreted(rounds=True, sms=64 if splits else 1)
    k = (576 if kind in CODED else 544) if splits else 64
    for n, rows, activation in [(10, 3, Activation.SILU), (24, 5, Activation.GELU), (21, 1, Activation.RELU)]:
        weights = [random_weight(rng, kind, n, k) for _ in range(1 + gated)]
        x, bias, residual = normal(rng, rows, k), normal(rng, n * (1 + gated)), normal(rng, rows, n)
        options = {"bias": bias, "activation": activation, "scaling": Scaling(0.37, 4.0)}
        got = linear(backend, x, weights, gated, residual=residual, **options)
        packed = REFERENCE.pack(weights, gated)
        want = by_reference(
            tokens_batch(rows),
            lambda ops, _, t, p=packed, o=options: ops.linear(t[0], p, residual=t[1], **o),
            x,
            residual,
        )
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)


def test_many_rows_of_a_quantized_weight_are_widened() -> None:
    rng = np.random.default_rng(4)
    for kind in ("u4-min", "s8-by16-wide", *CODED):
        w, x = random_weight(rng, kind, 9, 192), normal(rng, 256, 192)
        check_against_exact(linear(interpreted(), x, [w]), x, w, False)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", [k for k in LAYOUTS if k[0] in "su"])
def test_rounding_once_equals_rounding_in_each_tile(kind: str, dtype: str) -> None:
    """W8A8 and W4A8 in integers, from 64 rows on: bits. A row that is not finite harms only itself."""
    rng = np.random.default_rng(10)
    w, x = random_weight(rng, kind, 24, 288), normal(rng, 65, 288)
    x[0], x[3, 64:96], x[5, 40], x[64, 7] = 0, 0, np.nan, np.inf
    backend = interpreted(rounds=True, dtype=dtype, sms=16)
    many = linear(backend, x, [w])
    few = np.concatenate([linear(backend, x[:33], [w]), linear(backend, x[33:], [w])])
    for rows, how in ((65, 2), (33, 1)):
        assert backend.policy.rounding(rows, Layout.S8) == how
    np.testing.assert_array_equal(many[:64], few[:64])
    assert np.isnan(many[5]).all()
    assert not np.isfinite(many[64]).any()
    others = [i for i in range(64) if i != 5]
    if dtype == "float32":
        check_against_exact(many[others], x[others], w, True)


def test_rounded_rows() -> None:
    rng = np.random.default_rng(11)
    x = normal(rng, 5, 96) * np.float32(7)
    x[2, :32], x[4, 40] = 0, np.nan
    q, d = (t.numpy() for t in integer.round_rows(torch.from_numpy(x)))
    assert (q.dtype, q.shape, d.shape) == (np.int8, (5, 96), (3, 5))
    got = q.reshape(5, 3, 32).astype(np.float32) * d.T[:, :, None]
    np.testing.assert_array_equal(got.reshape(5, 96)[:4], round_to_int8(x)[:4])
    assert np.isnan(d[1, 4])


def test_stacked_weights_of_several_layouts() -> None:
    rng = np.random.default_rng(4)
    weights = [
        random_weight(rng, kind, n, 64)
        for kind, n in [
            ("u4", 17),
            ("u4-min", 5),
            ("s8", 20),
            ("f16", 3),
            *[(c, 7) for c in CODED for _ in "12"],
        ]
    ]
    rows = sum(w.shape[0] for w in weights)
    x, bias, residual = normal(rng, 6, 64), np.arange(rows, dtype=np.float32), normal(rng, 6, rows)
    got = linear(interpreted(), x, weights, bias=bias, residual=residual)
    want = x @ np.concatenate([w.dequantize() for w in weights]).T + bias + residual
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["f32", "s8", "u4-min", "f8-blocks", "nf4"])
def test_bits_do_not_depend_on_the_number_of_rows(kind: str) -> None:
    """Bit-exact mode: alone, in a few rows, in many."""
    rng = np.random.default_rng(5)
    w, x = random_weight(rng, kind, 40, 576), normal(rng, 70, 576)
    for rounds in (False, True):
        backend = interpreted(exact=True, rounds=rounds)
        whole = linear(backend, x, [w])
        for rows in (1, 3, 64):
            np.testing.assert_array_equal(linear(backend, x[:rows], [w]), whole[:rows])


@pytest.mark.parametrize("kind", ["s8", "u4-min", "f32", "f8", "nf4"])
@pytest.mark.parametrize("rounds", [False, True])
def test_a_row_that_is_not_finite_harms_only_itself(kind: str, rounds: bool) -> None:
    rng = np.random.default_rng(6)
    w, x = random_weight(rng, kind, 20, 64), normal(rng, 7, 64)
    backend = interpreted(rounds=rounds)
    clean = linear(backend, x, [w])
    x[2, 40], x[5, 3] = np.nan, np.inf
    got = linear(backend, x, [w])
    assert np.isnan(got[2]).all()
    assert not np.isfinite(got[5]).any()
    others = [0, 1, 3, 4, 6]
    np.testing.assert_array_equal(got[others], clean[others])


@pytest.mark.parametrize("kind", ["f16", "s8", "u4-min", "f8-blocks", "nf4"])
def test_half_precision(kind: str) -> None:
    """f16 activations: the product's sum is still f32. (The interpreter's bf16 dots are wrong.)"""
    rng = np.random.default_rng(7)
    w, x = random_weight(rng, kind, 24, 192), normal(rng, 5, 192).astype(np.float16).astype(np.float32)
    got = linear(interpreted(dtype="float16"), x, [w])
    want = x @ w.dequantize().T
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("kind", [*LAYOUTS, *CODED])
def test_embedding(kind: str) -> None:
    rng = np.random.default_rng(0)
    w = random_weight(rng, kind, 50, 64)
    batch, backend = batch_of(rng, [9, 4, 30], [3, 4, 1]), interpreted()
    table, packed = w.dequantize(), backend.pack([w])
    got = run(backend, batch, lambda ops, inputs, _: ops.embed(inputs, packed, 1.7))
    np.testing.assert_allclose(got, table[batch.token_ids] * np.float32(1.7), rtol=1e-6)
    x = normal(rng, batch.num_tokens, 64)
    placed = run(backend, batch, lambda ops, inputs, t: ops.embed_positions(inputs, t[0], packed, 2), x)
    np.testing.assert_allclose(placed, x + table[batch.positions + 2], rtol=1e-6, atol=1e-6)


def test_packing() -> None:
    rng, released = np.random.default_rng(8), []
    backend = interpreted()
    w = random_weight(rng, "u4-min", 4, 64)
    w = Weight(w.layout, w.shape, w.values, w.scale, w.minimum, release=lambda: released.append(1))
    packed = backend.pack([w])
    assert (released, packed.shape, packed.nbytes) == ([1], (4, 64), 4 * 64 // 2 + 2 * 2 * 4 * 2)
    with pytest.raises(ValueError, match="gate and up"):
        backend.pack([random_weight(rng, "f32", 4, 8)], gated=True)
    with pytest.raises(CheckpointError, match="one width"):
        backend.pack([random_weight(rng, "f32", 4, 8), random_weight(rng, "f32", 4, 9)])
    foreign = REFERENCE.pack([Weight.dense(np.ones((4, 4), np.float32))])
    with pytest.raises(TypeError, match="another backend"):
        run(backend, tokens_batch(1), lambda ops, _, t: ops.linear(t[0], foreign), normal(rng, 1, 4))


def test_logits_are_f32_whatever_the_activations_are() -> None:
    rng = np.random.default_rng(9)
    w, x = random_weight(rng, "f16", 6, 32), normal(rng, 2, 32)
    backend = interpreted(dtype="float16")
    packed = backend.pack([w])
    got = run(backend, tokens_batch(2), lambda ops, _, t: ops.logits(t[0], packed), x)
    want = x.astype(np.float16).astype(np.float32) @ w.dequantize().T
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layer", [False, True])
def test_a_norm_rounds_for_the_product_that_follows(dtype: str, layer: bool, monkeypatch: Any) -> None:
    """W8A8: norm and rounding in one kernel give the bits of one after the other; NaN and zeros too."""
    from octavo.kernels.cuda import gemm, norms
    from octavo.kernels.cuda.integer import RoundedRows, round_rows

    rng, kind = np.random.default_rng(11), torch.float32 if dtype == "float32" else torch.float16
    backend = interpreted(rounds=True, dtype=dtype, sms=16)
    x, added = (torch.tensor(normal(rng, 65, 96)).to(kind) for _ in range(2))
    x[3], added[3], x[5, 40] = 0, 0, float("nan")
    gain, bias = torch.tensor(normal(rng, 96)), torch.tensor(normal(rng, 96))
    for programs in (0, 8):  # rows by themselves, and several a program
        how = norms.RowNorm(gain, bias if layer else None, 1e-5, layer)
        total, made = norms.norm(x, added, how, programs, True)
        again, plain = norms.norm(x, added, how, programs)
        assert isinstance(made, RoundedRows)
        q, d = round_rows(plain)
        for one, other in ((total, again), (made.x, plain), (made.d, d)):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
        finite = [i for i in range(65) if i != 5]  # an int8 of NaN is anything
        np.testing.assert_array_equal(made.q[finite].numpy(), q[finite].numpy())
    w, calls = random_weight(rng, "s8", 24, 96), []
    monkeypatch.setattr(gemm, "round_rows", lambda x: calls.append(1) or round_rows(x))
    for count in (65, 40):  # fewer rows are rounded in each tile
        ops = backend.eager(batch_of(rng, [count], [count]))
        y = ops.rms_norm(ops.tensor(normal(rng, count, 96)), gain.numpy(), 1e-5)
        assert isinstance(y.ref, RoundedRows) is (count == 65)
        got = ops.value(ops.linear(y, backend.pack([w])))
        apart = ops.value(ops.linear(ops.tensor(ops.value(y)), backend.pack([w])))
        np.testing.assert_array_equal(got, apart)
        assert len(calls) == (count == 65)  # only the product whose rows came as they were
        calls.clear()
