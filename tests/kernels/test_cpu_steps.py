"""Scales in two levels: their products, beside exact arithmetic and layouts of one level."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.ops import F32, Activation, Inputs, Rows, Scaling, Tensor
from octavo.kernels.program import Buffer
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_math import round_to_int8
from octavo.kernels.weight import Layout, Weight
from support.kernels import (
    FEW_BITS,
    STEPPED,
    WHOLE_STEPS,
    limits_of,
    normal,
    random_weight,
    tokens_batch,
)

ISAS = instruction_sets()
BACKENDS = {(isa, threads): CpuBackend(threads, isa) for isa in ISAS for threads in (1, 2)}


def linear(backend: CpuBackend, x: F32, weights: list[Weight], gated: bool = False, **options: object) -> F32:
    batch = tokens_batch(len(x))
    ops = backend.eager(batch, limits_of(batch))
    packed = backend.pack(weights, gated)
    if isinstance(residual := options.pop("residual", None), np.ndarray):
        options["residual"] = ops.tensor(residual, Buffer(Rows.TOKENS, residual.shape[1]))
    y = ops.linear(ops.tensor(x, Buffer(Rows.TOKENS, x.shape[1])), packed, **options)  # type: ignore[arg-type]
    return ops.value(y)


def check_against_exact(got: F32, x: F32, w: Weight) -> None:
    """Rounding errors of a sum of K terms in f32, products and minima each with their own size."""
    seen, wide = round_to_int8(x).astype(np.float64), w.widened()
    size = np.abs(w.dequantize()).astype(np.float64)
    if wide.minimum is not None:
        each = x.shape[1] // wide.minimum.shape[1]
        size = size + 2 * np.repeat(np.abs(wide.minimum.astype(np.float64)), each, axis=1)
    bound = 4e-7 * np.sqrt(x.shape[1]) * (np.abs(seen) @ size.T) + 1e-30
    assert (np.abs(got - seen @ w.dequantize().astype(np.float64).T) <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STEPPED)
def test_every_number_of_rows(isa: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    w = random_weight(rng, kind, 37, 512)
    x = normal(rng, 150, 512) * rng.uniform(0.01, 30, (150, 1)).astype(np.float32)
    whole = linear(BACKENDS[isa, 2], x, [w])
    check_against_exact(whole, x, w)
    for rows in range(1, 40):
        for threads in (1, 2):
            some = linear(BACKENDS[isa, threads], x[:rows], [w])
            np.testing.assert_array_equal(some, whole[:rows])  # bits, whatever M and threads are


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", FEW_BITS)
def test_steps_are_whole_numbers(isa: str, kind: str) -> None:
    """Where no minimum adds anything the bits are those of S8 of the products with the steps."""
    rng = np.random.default_rng(2)
    w, x = random_weight(rng, kind, 40, 768), normal(rng, 9, 768)
    values = w.values.copy()
    if kind == "u2":
        values[:, :, -2:] &= 15  # steps of minima
    else:
        values[:, :, -2:] |= 1  # the one product that is no int8 is 32 times 4
    w = replace(w, values=values)
    assert w.scale is not None
    products = w.dequantize().reshape(40, 3, 256) / w.scale.astype(np.float32)[..., None]
    whole = np.rint(products)
    np.testing.assert_allclose(products, whole, atol=1e-4)
    same = Weight(Layout.S8, w.shape, whole.astype(np.int8).reshape(40, 24, 32), w.scale)
    np.testing.assert_array_equal(same.dequantize(), w.dequantize())
    np.testing.assert_array_equal(linear(BACKENDS[isa, 2], x, [w]), linear(BACKENDS[isa, 2], x, [same]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", WHOLE_STEPS)
def test_steps_have_the_bits_of_scales_in_one_level(isa: str, kind: str) -> None:
    rng = np.random.default_rng(10)
    w, x = random_weight(rng, kind, 37, 768), normal(rng, 40, 768)
    plain = w.widened()
    assert plain.layout in (Layout.U4, Layout.S8)
    for rows in (*range(1, 14), 23, 24, 40):
        want = linear(BACKENDS[isa, 1], x[:rows], [plain])
        for threads in (1, 2):
            np.testing.assert_array_equal(linear(BACKENDS[isa, threads], x[:rows], [w]), want)
    gated = [random_weight(rng, kind, 20, 256) for _ in "gu"]
    want = linear(BACKENDS[isa, 2], x[:5, :256], [v.widened() for v in gated], gated=True)
    np.testing.assert_array_equal(linear(BACKENDS[isa, 2], x[:5, :256], gated, gated=True), want)


@pytest.mark.parametrize("kind", STEPPED)
def test_wide_vectors_change_no_bit(kind: str) -> None:
    fused = [isa for isa in ISAS if isa != "generic"]  # generic x86 has no fused multiply-add
    rng = np.random.default_rng(2)
    x, w = normal(rng, 9, 256), random_weight(rng, kind, 33, 256)
    assert len({linear(BACKENDS[isa, 1], x, [w]).tobytes() for isa in fused}) <= 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STEPPED)
@pytest.mark.parametrize("gated", [False, True])
def test_epilogue_against_the_reference(isa: str, kind: str, gated: bool) -> None:
    rng, reference = np.random.default_rng(3), ReferenceBackend()
    for n, rows in ((10, 3), (24, 33), (21, 1)):
        weights = [random_weight(rng, kind, n, 256) for _ in range(1 + gated)]
        x, bias, residual = normal(rng, rows, 256), normal(rng, n * (1 + gated)), normal(rng, rows, n)
        options = {"bias": bias, "activation": Activation.SILU, "scaling": Scaling(0.37, 4.0)}
        got = linear(BACKENDS[isa, 2], x, weights, gated, residual=residual, **options)
        want = reference.ops.linear(
            Tensor(Rows.TOKENS, 256, x),
            reference.pack(weights, gated),
            bias,
            Activation.SILU,
            Tensor(Rows.TOKENS, n, residual),
            Scaling(0.37, 4.0),
        ).ref
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_stacked_beside_other_layouts(isa: str) -> None:
    """A part's bits are those that it has alone."""
    rng = np.random.default_rng(4)
    rows = {"u2": 17, "u4-min": 5, "u3": 20, "k4": 19, "k6": 7, "s8-by16-wide": 18, "k5": 16, "c4": 33}
    rows |= {"u4-min-wide": 20, "c4-block": 9, "u2 ": 3}
    weights = [random_weight(rng, kind.strip(), n, 256) for kind, n in rows.items()]
    x = normal(rng, 6, 256)
    got = linear(BACKENDS[isa, 2], x, weights)
    np.testing.assert_array_equal(
        got, np.concatenate([linear(BACKENDS[isa, 1], x, [w]) for w in weights], axis=1)
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STEPPED)
def test_sharded_by_rows_and_by_columns(isa: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    w, x = random_weight(rng, kind, 40, 512), normal(rng, 7, 512)
    whole = linear(BACKENDS[isa, 1], x, [w])
    halves = [linear(BACKENDS[isa, 1], x, [w.rows(slice(*cut))]) for cut in ((0, 23), (23, 40))]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), whole)
    parts = [linear(BACKENDS[isa, 1], x[:, a:b], [w.columns(a, b)]) for a, b in ((0, 256), (256, 512))]
    np.testing.assert_allclose(parts[0] + parts[1], whole, rtol=1e-4, atol=1e-4 * np.abs(whole).max())
    if kind in FEW_BITS:
        with pytest.raises(CheckpointError, match="cut a group of 256"):
            w.columns(128, 512)
        return
    cut = w.columns(96, 512)  # a part of a group: its scales in one level
    assert cut.layout.stepped == (kind == "c4-block")
    np.testing.assert_array_equal(cut.dequantize(), w.dequantize()[:, 96:])
    with pytest.raises(CheckpointError, match="columns 112 to 512 cut a group of 32"):
        w.columns(112, 512)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STEPPED)
def test_rows_of_a_table(isa: str, kind: str) -> None:
    rng = np.random.default_rng(6)
    w = random_weight(rng, kind, 50, 512)
    batch = replace(tokens_batch(50), token_ids=np.arange(50, dtype=np.int32))
    ops = BACKENDS[isa, 1].eager(batch, limits_of(batch))
    table = BACKENDS[isa, 1].pack([w])
    np.testing.assert_array_equal(ops.value(ops.embed(Inputs(batch), table)), w.dequantize())


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_numbers_do_not_overflow(isa: str) -> None:
    steps = {"u2": 0xFF, "u3": 63, "k4": 63, "k5": 63, "k6": 0x80, "c4": 0xE0, "c4-block": 0x80}
    for kind in STEPPED:
        w = random_weight(np.random.default_rng(7), kind, 16, 256)
        for bits in (0, 0xFF):
            values = np.full_like(w.values, bits)
            values[:, :, -1 if kind.startswith("c4") else -2 :] = steps[kind]
            extreme = replace(w, values=values)
            for sign, rows in ((1, 5), (-1, 5), (1, 30), (-1, 30)):
                x = np.full((rows, 256), sign, np.float32)
                check_against_exact(linear(BACKENDS[isa, 1], x, [extreme]), x, extreme)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STEPPED)
def test_a_row_that_is_not_finite_harms_only_itself(isa: str, kind: str) -> None:
    rng = np.random.default_rng(8)
    w, x = random_weight(rng, kind, 20, 256), normal(rng, 7, 256)
    clean = linear(BACKENDS[isa, 1], x, [w])
    x[2, 40], x[5, 3] = np.nan, np.inf
    got = linear(BACKENDS[isa, 1], x, [w])
    assert np.isnan(got[2]).all()
    assert not np.isfinite(got[5]).any()
    others = [0, 1, 3, 4, 6]
    np.testing.assert_array_equal(got[others], clean[others])


def test_what_a_weight_must_have() -> None:
    rng = np.random.default_rng(9)
    for kind in STEPPED:
        w = random_weight(rng, kind, 4, 256)
        assert w.scale is not None
        with pytest.raises(CheckpointError, match="lacks its f16 scales"):
            replace(w, scale=w.scale.astype(np.float32))
        with pytest.raises(CheckpointError, match="lacks its f16 scales"):
            replace(w, minimum=w.scale if w.minimum is None else None)
        with pytest.raises(CheckpointError, match="lacks its scales"):
            replace(w, scale=np.repeat(w.scale, 2, axis=1))
