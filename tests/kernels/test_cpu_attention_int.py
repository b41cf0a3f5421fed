"""Attention over integer pages is computed in integers: where that could go wrong."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.ops import AttentionSpec
from support.attention import Case

BACKENDS = [CpuBackend(1, isa) for isa in instruction_sets()]
by_isa = pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.isa)
by_dtype = pytest.mark.parametrize("dtype", ["int8", "int16"])


def close_to_the_reference(backend: CpuBackend, case: Case, cuts: list[list[int]]) -> None:
    for got, want in zip(case.run(backend, cuts), case.truth(), strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@by_isa
@by_dtype
@pytest.mark.parametrize("page_size", [3, 16])
@pytest.mark.parametrize("shape", [(2, 1, 1, 1), (4, 2, 7, 5), (6, 2, 33, 17), (3, 1, 30, 48)])
def test_any_dimensions(
    backend: CpuBackend, dtype: str, shape: tuple[int, int, int, int], page_size: int
) -> None:
    """Pairs of dimensions and of positions that have no second, on pages of an odd size too."""
    case = Case(1, [67, 40], AttentionSpec(*shape, shape[2] ** -0.5, window=37), page_size, dtype)
    close_to_the_reference(backend, case, [[67], [39, 1]])


@by_isa
@by_dtype
@pytest.mark.parametrize("d", [64, 512, 1024])
def test_no_sum_overflows(backend: CpuBackend, dtype: str, d: int) -> None:
    """Every product of the sum is the largest that there can be, and all have one sign."""
    case = Case(2, [40], AttentionSpec(2, 1, d, 16, 1 / d), 16, dtype)
    case.qkv[0][:, : 3 * d] = np.where(np.arange(40) % 2, 1.0, -1.0)[:, None]
    close_to_the_reference(backend, case, [[39, 1]])


@by_isa
@by_dtype
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_no_weighted_sum_overflows(backend: CpuBackend, dtype: str, sign: float) -> None:
    """All positions weigh the same, which makes the largest sum of weights, and meet the largest values."""
    case = Case(2, [96], AttentionSpec(2, 1, 32, 16, 0.2), 16, dtype)
    case.qkv[0][:, : 3 * 32], case.qkv[0][:, 3 * 32 :] = 0, sign
    for got in case.run(backend, [[94, 1, 1]]):
        np.testing.assert_allclose(got, sign, rtol=1e-4)


@by_isa
@by_dtype
@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_values_of_any_size(backend: CpuBackend, dtype: str, size: float) -> None:
    """The weights, which the values' scales are part of, keep their 16 bits; so do the queries."""
    case = Case(3, [90], AttentionSpec(4, 2, 32, 32, 0.2 / size), 16, dtype)
    case.qkv[0][:, : 4 * 32] *= np.float32(size)
    case.qkv[0][:, 6 * 32 :] *= np.float32(size)
    close_to_the_reference(backend, case, [[88, 1, 1]])


@by_isa
@by_dtype
def test_zeros(backend: CpuBackend, dtype: str) -> None:
    case = Case(4, [50], AttentionSpec(4, 2, 32, 32, 0.2), 16, dtype)
    case.qkv[0][:, 6 * 32 :] = 0
    assert all((y == 0).all() for y in case.run(backend, [[49, 1]]))
    case.qkv[0][:] = 0
    assert all((y == 0).all() for y in case.run(backend, [[49, 1]]))


@by_isa
@by_dtype
def test_values_that_are_not_finite_reach_whoever_sees_them(backend: CpuBackend, dtype: str) -> None:
    """Of V alone, at a position inside of a block that the rows of one tile see partly."""
    case = Case(5, [60], AttentionSpec(2, 1, 32, 32, 0.2, window=9), 16, dtype)
    clean = case.run(backend, [[60]])[0]
    case.qkv[0][20, 3 * 32 :] = np.inf
    for cuts in ([60], [20, 1, 1, 38]):
        got = case.run(backend, [cuts])[0]
        assert np.isnan(got[20:29]).all()
        np.testing.assert_array_equal(got[:20], clean[:20])
        np.testing.assert_array_equal(got[29:], clean[29:])


@by_dtype
def test_all_instruction_sets_agree(dtype: str) -> None:
    """Sums of integers have no order; only fused multiply-adds, which generic x86 lacks, are left."""
    case = Case(6, [300, 20], AttentionSpec(6, 2, 40, 24, 0.15, window=100), 16, dtype)
    fused = [b for b in BACKENDS if b.isa != "generic"]
    outputs = {b"".join(y.tobytes() for y in case.run(b, [[299, 1], [20]])) for b in fused}
    assert len(outputs) <= 1
