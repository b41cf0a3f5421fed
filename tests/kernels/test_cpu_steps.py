"""Scales in two levels, beside layouts of one; what every layout promises is held by test_cpu_linear.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.weight import Layout, Weight
from support.kernels import FEW_BITS, STEPPED, WHOLE_STEPS, linear, normal, random_weight

ISAS = instruction_sets()
BACKENDS = {(isa, threads): CpuBackend(threads, isa) for isa in ISAS for threads in (1, 2)}


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
