"""U2 and U3, scales in two levels, beside S8; what every layout promises is held by test_cpu_linear.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.errors import CheckpointError
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.weight import Layout, Weight
from support.kernels import STEPPED, linear, normal, random_weight

ISAS = instruction_sets()
BACKENDS = {(isa, threads): CpuBackend(threads, isa) for isa in ISAS for threads in (1, 2)}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STEPPED)
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
@pytest.mark.parametrize("kind", STEPPED)
def test_sharded_by_rows_and_by_columns(isa: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    w, x = random_weight(rng, kind, 40, 512), normal(rng, 7, 512)
    whole = linear(BACKENDS[isa, 1], x, [w])
    halves = [linear(BACKENDS[isa, 1], x, [w.rows(slice(*cut))]) for cut in ((0, 23), (23, 40))]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), whole)
    parts = [linear(BACKENDS[isa, 1], x[:, a:b], [w.columns(a, b)]) for a, b in ((0, 256), (256, 512))]
    np.testing.assert_allclose(parts[0] + parts[1], whole, rtol=1e-4, atol=1e-4 * np.abs(whole).max())
    with pytest.raises(CheckpointError, match="cut a group of 256"):
        w.columns(128, 512)


def test_what_a_weight_must_have() -> None:
    rng = np.random.default_rng(9)
    for kind in STEPPED:
        w = random_weight(rng, kind, 4, 256)
        assert w.scale is not None
        with pytest.raises(CheckpointError, match="lacks its f16 scales"):
            replace(w, scale=w.scale.astype(np.float32))
        with pytest.raises(CheckpointError, match="lacks its f16 scales"):
            replace(w, minimum=None if kind == "u2" else w.scale)
        with pytest.raises(CheckpointError, match="lacks its scales"):
            replace(w, scale=np.repeat(w.scale, 8, axis=1))
