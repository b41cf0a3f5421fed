"""Native paged attention: against the reference, and bit for bit against itself cut otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.ops import AttentionSpec, Inputs, Limits, Rotary, Rows, Tensor
from octavo.kernels.program import Buffer
from support.attention import REFERENCE, Case, native, specs
from support.kernels import batch_on, limits_of

BACKENDS = [CpuBackend(threads, isa) for isa in instruction_sets() for threads in (1, 2)]
BY_NAME = {f"{b.isa}-{b.threads}": b for b in BACKENDS}
# Integer pages: each of a block's 32 weights moves by half a 32760th of their sum at most, so no result by
# more than 16 / 32760 of the largest value (2e-3 here), and most by far less.
TOLERANCE = {"f32": 1e-5, "f16": 1e-5, "bf16": 1e-5, "int8": 2e-4, "int16": 2e-4}
RMS = {"f32": 1e-6, "f16": 1e-6, "bf16": 1e-6, "int8": 2e-5, "int16": 2e-5}


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "int16"])
@pytest.mark.parametrize("shape", [(9, 3, 64, 64), (4, 4, 24, 40), (5, 1, 80, 16), (8, 2, 128, 128)])
def test_equals_the_reference(backend: CpuBackend, dtype: str, shape: tuple[int, int, int, int]) -> None:
    for i, spec in enumerate(specs(*shape)):
        case = Case(i, [1, 70, 33, 290], spec, page_size=16, dtype=dtype)
        for got, want in zip(case.run(backend, [[n] for n in case.context_lens]), case.truth(), strict=True):
            # f16 products of equal stored values: the pages hold the same bits in both
            np.testing.assert_allclose(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
            assert np.sqrt(np.square(got - want).mean()) < RMS[dtype]


@given(
    st.integers(0, 2**32),
    st.sampled_from(list(BY_NAME)),
    st.sampled_from([1, 2, 3, 8, 16, 24, 32, 48, 256]),
    st.sampled_from(["f32", "f16", "bf16", "int8", "int16"]),
)
@settings(max_examples=60, deadline=None)
def test_bits_do_not_depend_on_the_cut(seed: int, name: str, page_size: int, dtype: str) -> None:
    """Whole prompts on one thread and pages of 16, against random chunks on other pages and threads."""
    rng = np.random.default_rng(seed)
    spec = specs(6, 2, 32, 48)[seed % 6]
    lengths = rng.integers(1, 600, 3).tolist()
    backend = BY_NAME[name]
    alone = BY_NAME[f"{backend.isa}-1"]
    whole = Case(seed, lengths, spec, 16, dtype).run(alone, [[n] for n in lengths])
    cuts = []
    for n in lengths:
        points = np.unique(rng.integers(0, n + 1, rng.integers(0, 7)))
        pieces = np.diff(np.concatenate([[0], points, [n]]))
        cuts.append([int(p) for p in pieces if p])
    paged = Case(seed, lengths, spec, page_size, dtype)
    paged.qkv = Case(seed, lengths, spec, 16, dtype).qkv
    for got, want in zip(paged.run(backend, cuts), whole, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
def test_decoding_a_long_context_in_splits(backend: CpuBackend) -> None:
    spec = AttentionSpec(9, 3, 64, 64, 0.125)
    case = Case(3, [1100], spec, 16, "f16")
    (whole,) = case.run(BY_NAME[f"{backend.isa}-1"], [[1100]])
    (stepped,) = case.run(backend, [[1000, 70, 1, 1, 20, 3, 1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(stepped, whole)
    np.testing.assert_allclose(whole, case.truth()[0], atol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "int16"])
def test_pages_are_copied(dtype: str) -> None:
    backend, spec = BACKENDS[0], AttentionSpec(2, 1, 16, 16, 0.25)
    case = Case(4, [20], spec, 4, dtype)
    cache = backend.kv_cache([case.kv] * 2, 12, 4)
    assert cache.nbytes == 2 * 12 * 4 * case.kv.bytes_per_token
    case.tables = np.int32([[7, 1, 9, 0, 2]])
    ((_, batch, qkv),) = case.steps([[20]])
    before = native(backend, cache, batch, qkv, spec, limits_of(batch))
    cache.copy_pages([(7, 8), (8, 3), (1, 7)])  # page 3 gets what 8 held before: nothing
    moved = batch_on(case.rng, np.int32([[8, 7, 9, 0, 2]]), [20], [1], 4)
    after = native(backend, cache, moved, qkv[-1:], spec, limits_of(moved))
    np.testing.assert_array_equal(after[0], before[-1])
    with pytest.raises(ValueError, match="outside the cache"):
        cache.copy_pages([(0, 12)])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "int16"])
def test_stale_pages_of_others_do_no_harm(dtype: str) -> None:
    """NaN that another request left in a reused page, beyond our context and before our window."""
    for backend in BACKENDS:
        spec = AttentionSpec(2, 1, 16, 16, 0.25, window=6)
        case = Case(5, [21], spec, 4, dtype)
        clean = case.run(backend, [[17, 1, 1, 1, 1]])[0]
        cache = backend.kv_cache([case.kv], case.num_pages, 4)
        everything = np.arange(case.num_pages, dtype=np.int32)[None]
        length = 4 * case.num_pages
        poison = batch_on(case.rng, everything, [length], [length], 4)
        limits = Limits(length, 1, 1, case.num_pages)
        native(
            backend, cache, poison, np.full((length, case.qkv[0].shape[1]), np.nan, np.float32), spec, limits
        )
        out = []
        for _, batch, qkv in case.steps([[17, 1, 1, 1, 1]]):
            out.append(native(backend, cache, batch, qkv, spec, limits_of(batch)))
        np.testing.assert_array_equal(np.concatenate(out), clean)


def test_a_sequence_that_is_not_finite_harms_only_itself() -> None:
    for backend in BACKENDS:
        for dtype in ("f16", "int8", "int16"):
            case = Case(6, [40, 50, 30], AttentionSpec(4, 2, 32, 32, 0.2), 16, dtype)
            clean = case.run(backend, [[40], [50], [30]])
            case.qkv[1][20] = np.nan
            case.qkv[1][21] = np.inf
            got = case.run(backend, [[40], [50], [30]])
            np.testing.assert_array_equal(got[0], clean[0])
            np.testing.assert_array_equal(got[2], clean[2])
            np.testing.assert_array_equal(got[1][:20], clean[1][:20])
            assert np.isnan(got[1][20:]).all()


def test_wide_vectors_change_no_bit() -> None:
    fused = [b for b in BACKENDS if b.isa != "generic"]  # generic x86 has no fused multiply-add
    for i, spec in enumerate(specs(6, 2, 40, 24)):
        case = Case(i, [300, 20], spec, 16, "f16")
        outputs = {b"".join(y.tobytes() for y in case.run(b, [[300], [20]])) for b in fused}
        assert len(outputs) <= 1


def test_rotated_keys_reach_the_pages() -> None:
    """The same through rotation: positions matter only by their difference."""
    spec = AttentionSpec(2, 1, 32, 32, 0.2)
    angles = np.outer(np.arange(64), 0.1 ** (np.arange(16) / 16)).astype(np.float32)
    rotary = Rotary(np.cos(angles), np.sin(angles))
    case = Case(7, [30], spec, 16, "f32")
    ((_, batch, qkv),) = case.steps([[30]])
    for backend in BACKENDS:
        cache, other = (b.kv_cache([case.kv], case.num_pages, 16) for b in (backend, REFERENCE))
        ops = backend.eager(batch, limits_of(batch))
        x = ops.tensor(qkv, Buffer(Rows.TOKENS, qkv.shape[1]))
        q = ops.rotary_append(Inputs(), x, cache.layer(0), spec, rotary)
        got = ops.value(ops.attention(Inputs(), q, cache.layer(0), spec))
        inputs, layer = Inputs(batch), other.layer(0)
        want_q = REFERENCE.ops.rotary_append(
            inputs, Tensor(Rows.TOKENS, qkv.shape[1], qkv), layer, spec, rotary
        )
        np.testing.assert_allclose(got, REFERENCE.ops.attention(inputs, want_q, layer, spec).ref, atol=1e-5)
