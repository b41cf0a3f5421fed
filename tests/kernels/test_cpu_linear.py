"""Native linear against exact arithmetic, for every layout, shape and instruction set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import CheckpointError
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.ops import (
    Activation,
    Inputs,
    Ops,
    Rows,
    Scaling,
    Tensor,
)
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_math import activate, rms_norm, round_to_int8
from octavo.kernels.weight import Layout, Weight
from support.kernels import (
    CODED,
    LAYOUTS,
    STEPPED,
    check_against_exact,
    columns,
    grouped_weight,
    limits_of,
    linear,
    normal,
    random_weight,
    tokens_batch,
)

BACKENDS = {(isa, threads): CpuBackend(threads, isa) for isa in instruction_sets() for threads in (1, 2)}
ISAS = instruction_sets()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [*LAYOUTS, *STEPPED])
def test_every_number_of_rows(isa: str, kind: str) -> None:
    rng, k = np.random.default_rng(1), columns(kind, 288)
    w = random_weight(rng, kind, 37, k)
    x = normal(rng, 40, k) * rng.uniform(0.01, 30, (40, 1)).astype(np.float32)
    whole = linear(BACKENDS[isa, 1], x, [w])
    check_against_exact(whole, x, w)
    for rows in range(1, 40):
        for threads in (1, 2):
            some = linear(BACKENDS[isa, threads], x[:rows], [w])
            np.testing.assert_array_equal(some, whole[:rows])  # bits, whatever M and threads are


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [*LAYOUTS, *STEPPED])
def test_crowds_that_pay_for_another_form_of_the_weights(isa: str, kind: str) -> None:
    rng, k = np.random.default_rng(6), columns(kind, 96)
    w, x = random_weight(rng, kind, 37, k), normal(rng, 150, k)
    whole = linear(BACKENDS[isa, 2], x, [w])
    check_against_exact(whole, x, w)
    for start in range(0, 150, 10):  # bits of few tokens
        np.testing.assert_array_equal(
            linear(BACKENDS[isa, 1], x[start : start + 10], [w]), whole[start : start + 10]
        )


@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(1, 12), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_random_shapes(seed: int, n: int, blocks: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    kind = LAYOUTS[seed % len(LAYOUTS)]
    k = blocks * 32 if kind[0] in "su" else blocks * 13
    w, x = random_weight(rng, kind, n, k), normal(rng, rows, k)
    for isa in ISAS:
        check_against_exact(linear(BACKENDS[isa, 2], x, [w]), x, w)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", CODED)
def test_codes_of_floats_have_the_bits_of_f32(isa: str, kind: str) -> None:
    """A panel of the same numbers in f32 says what each output is, rows and threads as they are."""
    rng = np.random.default_rng(1)
    w, x = random_weight(rng, kind, 37, 320), normal(rng, 40, 320)
    for rows in (*range(1, 14), 33, 40):
        want = linear(BACKENDS[isa, 1], x[:rows], [w.dense_f32()])
        for threads in (1, 2):
            np.testing.assert_array_equal(linear(BACKENDS[isa, threads], x[:rows], [w]), want)
    gated = [random_weight(rng, kind, 20, 64) for _ in "gu"]
    want = linear(BACKENDS[isa, 2], x[:5, :64], [v.dense_f32() for v in gated], gated=True)
    np.testing.assert_array_equal(linear(BACKENDS[isa, 2], x[:5, :64], gated, gated=True), want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("group", [64, 96, 128, 192])
@pytest.mark.parametrize("kind", ["s8", "s8-min", "u4", "u4-min-wide", "u4-zero", "u4-zero-order"])
def test_groups_are_what_blocks_with_equal_scales_are(isa: str, kind: str, group: int) -> None:
    """Scales that are said once for several blocks change no bit beside scales said for each."""
    rng = np.random.default_rng(group)
    w, x = grouped_weight(rng, kind, 37, 384, group), normal(rng, 30, 384)
    each = {name: np.repeat(t, group // 32, axis=1) for name in ("scale", "minimum", "zero")
            if (t := getattr(w, name)) is not None}  # fmt: skip
    want = linear(BACKENDS[isa, 1], x, [replace(w, **each)])
    check_against_exact(want, x, w)
    for rows, threads in ((1, 1), (2, 2), (7, 1), (30, 2)):
        np.testing.assert_array_equal(linear(BACKENDS[isa, threads], x[:rows], [w]), want[:rows])


@pytest.mark.parametrize("isa", ISAS)
def test_zero_points_have_the_bits_of_their_minima(isa: str) -> None:
    rng = np.random.default_rng(4)
    w, x = grouped_weight(rng, "u4-zero", 50, 128, 64), normal(rng, 30, 128)
    got = linear(BACKENDS[isa, 1], x, [w])
    np.testing.assert_array_equal(got, linear(BACKENDS[isa, 1], x, [w.with_minima()]))
    np.testing.assert_array_equal(w.dequantize(), w.with_minima().dequantize())


@pytest.mark.parametrize("isa", ISAS)
def test_columns_in_another_order_after_a_norm(isa: str) -> None:
    """The norm that a program moves into the product sees the row as it is, the product in W's order."""
    rng = np.random.default_rng(5)
    w, x = grouped_weight(rng, "u4-zero-order", 40, 128, 64), normal(rng, 9, 128)
    gain = rng.uniform(0.5, 2, 128).astype(np.float32)
    backend, batch = BACKENDS[isa, 2], tokens_batch(9)
    table, packed = backend.pack([Weight.dense(x)]), backend.pack([w])

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        return ops.linear(ops.rms_norm(ops.embed(inputs, table), gain, 1e-5), packed)

    batch = replace(batch, token_ids=np.arange(9, dtype=np.int32))
    fused = np.array(backend.capture(forward, limits_of(batch)).replay(batch))
    normed = rms_norm(x, gain, 1e-5)
    check_against_exact(fused, normed, w)
    ops = backend.eager(batch, limits_of(batch))
    np.testing.assert_array_equal(fused, ops.value(forward(ops, Inputs(batch))))


@pytest.mark.parametrize("kind", [*LAYOUTS, *STEPPED])
def test_wide_vectors_change_no_bit(kind: str) -> None:
    fused = [isa for isa in ISAS if isa != "generic"]  # generic x86 has no fused multiply-add
    rng, k = np.random.default_rng(2), columns(kind, 160)
    x, w = normal(rng, 9, k), random_weight(rng, kind, 33, k)
    results = [linear(BACKENDS[isa, 1], x, [w]).tobytes() for isa in fused]
    assert len(set(results)) <= 1


@pytest.mark.parametrize("kind", ["u4", "u4-min"])
@pytest.mark.parametrize("rows", [1, 7, 70])
def test_scales_that_are_integers_of_a_unit_and_others(kind: str, rows: int) -> None:
    """AVX2 multiplies by integers where a panel's scales allow it: no bit tells. 16 rows are a panel."""
    rng = np.random.default_rng(10)
    w = random_weight(rng, kind, 101, 160)
    scale = rng.choice([-1, 1], (101, 5)) * 2.0 ** rng.uniform(-7, -4, (101, 5))
    scale[20, 2] *= 2.0**9  # too far from the rest of its row
    scale[33] = 0
    scale[36, 1:3] = 0
    scale[48:64] *= 2.0**-15  # some below f16's normal range
    scale[64:80] *= 2.0**13  # 64 to 512
    scale[80] = [32767, 1, 3, 4098, 0]
    scale[81] = [32768, 1, 3, 4098, 0]
    w = replace(w, scale=scale.astype(np.float16))
    x = normal(rng, rows, 160)
    results = [linear(BACKENDS[isa, 1], x, [w]) for isa in ISAS]
    for isa, got in zip(ISAS, results, strict=True):
        check_against_exact(got, x, w)
        assert isa == "generic" or got.tobytes() == results[0].tobytes()
        table = BACKENDS[isa, 1].pack([w])
        ids = replace(tokens_batch(101), token_ids=np.arange(101, dtype=np.int32))
        ops = BACKENDS[isa, 1].eager(ids, limits_of(ids))
        np.testing.assert_array_equal(ops.value(ops.embed(Inputs(ids), table)), w.dequantize())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", "f16", "s8", "u4-min", "u5", *STEPPED])
@pytest.mark.parametrize("gated", [False, True])
def test_epilogue(isa: str, kind: str, gated: bool) -> None:
    rng, k = np.random.default_rng(3), columns(kind, 64)
    reference = ReferenceBackend()
    cases = (
        (10, 3, Activation.SILU),
        (24, 33 if kind in STEPPED else 5, Activation.GELU),
        (21, 1, Activation.RELU),
    )
    for n, rows, activation in cases:
        weights = [random_weight(rng, kind, n, k) for _ in range(1 + gated)]
        x, bias, residual = normal(rng, rows, k), normal(rng, n * (1 + gated)), normal(rng, rows, n)
        got = linear(
            BACKENDS[isa, 2],
            x,
            weights,
            gated,
            bias=bias,
            activation=activation,
            residual=residual,
            scaling=Scaling(0.37, 4.0),
        )
        want = reference.ops.linear(
            Tensor(Rows.TOKENS, k, x),
            reference.pack(weights, gated),
            bias,
            activation,
            Tensor(Rows.TOKENS, n, residual),
            Scaling(0.37, 4.0),
        ).ref
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("isa", ISAS)
def test_activations_over_their_whole_range(isa: str, activation: Activation) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4001), [0, -0.0, 90, -90, 1e4, -1e4, 1e-6]])
    x = x.astype(np.float32)[:, None]
    identity = Weight.dense(np.float32([[1]]))
    got = linear(BACKENDS[isa, 2], x, [identity], activation=activation)
    np.testing.assert_allclose(got, activate(x, activation), rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("isa", ISAS)
def test_stacked_weights_of_several_layouts(isa: str) -> None:
    rng = np.random.default_rng(4)
    rows = {"u4": 17, "u4-min": 5, "s8": 20, "f16": 3, "u5": 9, "u5-min": 18}
    rows |= {"u2": 17, "u3": 20, "s8-by16-wide": 3, "k4": 19, "k6": 7, "k5": 16, "c4": 33}
    rows |= {"u4-min-wide": 20, "c4-block": 9}
    weights = [random_weight(rng, kind, n, 256) for kind, n in rows.items()]
    x, bias = normal(rng, 6, 256), np.arange(sum(rows.values()), dtype=np.float32)
    got, plain = linear(BACKENDS[isa, 2], x, weights, bias=bias), linear(BACKENDS[isa, 2], x, weights)
    start = 0
    for kind, w in zip(rows, weights, strict=True):
        part = slice(start, start + w.shape[0])
        check_against_exact(plain[:, part], x, w)
        if kind not in ("u4", "u5"):  # beside others with minima they are given some, too
            alone = linear(BACKENDS[isa, 1], x, [w], bias=bias[part])
            np.testing.assert_array_equal(got[:, part], alone)  # bits
        start = part.stop


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["s8", "u4", "u4-min", "u5", "u5-min", "f32", *STEPPED])
def test_a_row_that_is_not_finite_harms_only_itself(isa: str, kind: str) -> None:
    rng, k = np.random.default_rng(5), columns(kind, 64)
    w, x = random_weight(rng, kind, 20, k), normal(rng, 7, k)
    clean = linear(BACKENDS[isa, 1], x, [w])
    x[2, 40], x[5, 3] = np.nan, np.inf
    got = linear(BACKENDS[isa, 1], x, [w])
    assert np.isnan(got[2]).all()
    assert not np.isfinite(got[5]).any()
    others = [0, 1, 3, 4, 6]
    np.testing.assert_array_equal(got[others], clean[others])


@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_rounded_as_specified(isa: str) -> None:
    """Ties to even, exact quotients, tiny and huge blocks: the integers show through a weight of 1."""
    rng = np.random.default_rng(6)
    x = normal(rng, 64, 32) * 10.0 ** rng.integers(-38, 38, (64, 1))
    x[0] = np.arange(32) - 15.5  # d = 16.5 / 127
    x[1] = np.r_[127, np.arange(31) - 15.5]  # d = 1: every other is a tie
    x[2] = 0
    x[3] = 1e-42  # a denormal d
    x = x.astype(np.float32)
    identity = Weight(Layout.S8, (32, 32), np.eye(32, dtype=np.int8)[:, None], np.ones((32, 1), np.float16))
    np.testing.assert_array_equal(linear(BACKENDS[isa, 1], x, [identity]), round_to_int8(x))


def test_extreme_integers_do_not_overflow() -> None:
    steps = {"u2": 0xFF, "u3": 63, "k4": 63, "k5": 63, "k6": 0x80, "c4": 0xE0, "c4-block": 0x80}
    for kind in ("u4", "u4-min", "u5-min", "s8", *STEPPED):
        w = random_weight(np.random.default_rng(7), kind, 16, columns(kind, 64))
        for bits in (0, 0xFF) if kind in STEPPED else (-128 if kind == "s8" else 0xFF,):
            values = np.full_like(w.values, bits)
            if kind in STEPPED:
                values[:, :, -1 if kind.startswith("c4") else -2 :] = steps[kind]
            extreme = replace(w, values=values)
            for sign, rows in ((1, 5), (-1, 5), (1, 30), (-1, 30)):
                x = np.full((rows, w.shape[1]), sign, np.float32)
                for isa in ISAS:
                    check_against_exact(linear(BACKENDS[isa, 1], x, [extreme]), x, extreme)


def test_packing_refuses_what_cannot_be() -> None:
    backend = CpuBackend()
    rng = np.random.default_rng(8)
    with pytest.raises(ValueError, match="gate and up"):
        backend.pack([random_weight(rng, "f32", 4, 8)], gated=True)
    with pytest.raises(CheckpointError, match="one width"):
        backend.pack([random_weight(rng, "f32", 4, 8), random_weight(rng, "f32", 4, 9)])


def test_large_sources_are_released_while_they_are_packed() -> None:
    """Between slices of 8 MB: what is still to be read is read again, and every row is right."""
    backend, released = CpuBackend(threads=2), list[int]()
    table = np.random.default_rng(3).standard_normal((70_003, 96)).astype(np.float32)  # 26.9 MB
    packed = backend.pack([Weight.dense(table, lambda: released.append(1))])
    assert len(released) == 4
    rows = np.array([0, 21_839, 21_840, 43_690, 65_535, 70_002])
    batch = replace(tokens_batch(len(rows)), token_ids=rows.astype(np.int32))
    ops = backend.eager(batch, limits_of(batch))
    np.testing.assert_array_equal(ops.value(ops.embed(Inputs(batch), packed)), table[rows])


def test_packing_releases_its_sources_once() -> None:
    released = []
    w = random_weight(np.random.default_rng(9), "u4", 4, 64)
    w = Weight(w.layout, w.shape, w.values, w.scale, release=lambda: released.append(1))
    packed = CpuBackend(isa="generic").pack([w])
    assert released == [1]
    assert packed.shape == (4, 64)
    assert packed.nbytes == 16 * 64 // 2 + 2 * 16 * 2
