"""The NumPy ops against torch: the executable specification must itself be right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as tf

from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import (
    Activation,
    AttentionSpec,
    Experts,
    Inputs,
    KVSpec,
    Rows,
    Scaling,
    Tensor,
)
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_kv import ReferenceKVCache
from octavo.kernels.reference_math import activate, attend, best, rotate, round_to_int8
from octavo.kernels.weight import Layout, Weight

RNG = np.random.default_rng(0)
BACKEND = ReferenceBackend()
OPS = BACKEND.ops


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def tensor(x: np.ndarray) -> Tensor:
    return Tensor(Rows.TOKENS, x.shape[1], x)


def u4(n: int, k: int, with_minimum: bool = True) -> Weight:
    values = RNG.integers(0, 256, (n, k // 32, 16)).astype(np.uint8)
    scale = RNG.uniform(0.01, 0.1, (n, k // 32)).astype(np.float16)
    minimum = -scale * np.float16(7.5) if with_minimum else None
    return Weight(Layout.U4, (n, k), values, scale, minimum)


@pytest.mark.parametrize(
    ("activation", "truth"),
    [
        (Activation.SILU, tf.silu),
        (Activation.GELU, tf.gelu),
        (Activation.GELU_TANH, lambda x: tf.gelu(x, approximate="tanh")),
        (Activation.RELU, tf.relu),
        (Activation.NONE, lambda x: x),
    ],
)
def test_activations(activation: Activation, truth) -> None:  # type: ignore[no-untyped-def]
    x = np.concatenate([normal(500) * 4, np.float32([0, -0.0, 80, -80, 100, -100])])
    np.testing.assert_allclose(activate(x, activation), truth(torch.tensor(x)).numpy(), atol=2e-6, rtol=2e-6)


def test_norms() -> None:
    x, gain, bias = normal(7, 48), normal(48), normal(48)
    t = torch.tensor
    rms = tf.rms_norm(t(x), (48,), t(gain), 1e-5).numpy()
    np.testing.assert_allclose(OPS.rms_norm(tensor(x), gain, 1e-5).ref, rms, atol=1e-5)
    layer = tf.layer_norm(t(x), (48,), t(gain), t(bias), 1e-5).numpy()
    np.testing.assert_allclose(OPS.layer_norm(tensor(x), gain, bias, 1e-5).ref, layer, atol=1e-5)


def test_linear_epilogue_order() -> None:
    x, gate, up = normal(5, 64), normal(24, 64), normal(24, 64)
    bias, residual = normal(48), normal(5, 24)
    packed = BACKEND.pack([Weight.dense(gate), Weight.dense(up)], gated=True)
    y = OPS.linear(tensor(x), packed, bias, Activation.SILU, tensor(residual), Scaling(0.5, 3.0)).ref
    g, u = torch.tensor(x @ gate.T + bias[:24]), torch.tensor(x @ up.T + bias[24:])
    z = 3 * torch.tanh(0.5 * tf.silu(g) * u / 3)
    np.testing.assert_allclose(y, residual + z.numpy(), atol=1e-4)


@pytest.mark.parametrize("with_minimum", [True, False])
def test_linear_rounds_activations_only_for_quantized_layouts(with_minimum: bool) -> None:
    x, w = normal(4, 96), u4(16, 96, with_minimum)
    dense = w.dequantize()
    blocks = x.reshape(4, 3, 32)
    d = np.abs(blocks).max(axis=2, keepdims=True) / 127
    rounded = (np.rint(blocks / d) * d).reshape(4, 96)
    got = OPS.linear(tensor(x), BACKEND.pack([w])).ref
    np.testing.assert_allclose(got, rounded @ dense.T, atol=1e-4)
    assert np.abs(got - x @ dense.T).max() > 1e-3  # the rounding is really there
    exact = OPS.linear(tensor(x), BACKEND.pack([Weight.dense(dense)])).ref
    np.testing.assert_allclose(exact, x @ dense.T, atol=1e-4)


def test_rounding_of_zero_and_of_not_finite_blocks() -> None:
    x = np.zeros((1, 96), np.float32)
    x[0, 32] = np.inf
    x[0, 64:] = np.linspace(-1, 1, 32)
    got = round_to_int8(x)
    assert (got[0, :32] == 0).all()
    assert np.isnan(got[0, 32])
    assert np.isfinite(got[0, 64:]).all()


def test_weight_nibbles_and_rows() -> None:
    values = np.zeros((1, 1, 16), np.uint8)
    values[0, 0, 3] = 0xA5  # element 3 is 5, element 19 is 10
    w = Weight(Layout.U4, (1, 32), values, np.ones((1, 1), np.float16), np.zeros((1, 1), np.float16))
    assert np.flatnonzero(w.dequantize()[0]).tolist() == [3, 19]
    assert w.dequantize()[0, [3, 19]].tolist() == [5.0, 10.0]
    a = u4(3, 64)
    np.testing.assert_array_equal(a.rows(np.array([2, 0])).dequantize(), a.dequantize()[[2, 0]])


def test_fifth_bits() -> None:
    values = np.zeros((1, 1, 20), np.uint8)
    values[0, 0, [1, 3, 4 + 3]] = (
        0x02,
        0x80,
        0xA5,
    )  # elements 9 and 31 are 16, element 3 is 5, element 19 is 10
    w = Weight(Layout.U5, (1, 32), values, np.full((1, 1), 2, np.float16))
    plain = np.zeros(32, np.float32)
    plain[[3, 9, 19, 31]] = 5, 16, 10, 16
    np.testing.assert_array_equal(w.dequantize()[0], 2 * (plain - 16))
    for minimum in (None, np.full((1, 1), 3, np.float16)):
        other = Weight(Layout.U5, (1, 32), values, w.scale, minimum)
        assert other.widened().layout is Layout.S8
        np.testing.assert_array_equal(other.widened().dequantize(), other.dequantize())
    assert u4(3, 64).widened().layout is Layout.U4


def test_moe_routes_ties_to_the_lower() -> None:
    x = normal(4, 32)
    experts = [(normal(16, 32), normal(16, 32), normal(32, 16)) for _ in range(4)]
    router = np.float32([[1, 1, 1, 0], [0, 2, 2, 2], [5, 0, 0, 5], [3, 3, 3, 3]])
    gate_up = [BACKEND.pack([Weight.dense(g), Weight.dense(u)], gated=True) for g, u, _ in experts]
    down = [BACKEND.pack([Weight.dense(d)]) for _, _, d in experts]
    y = OPS.moe(tensor(x), tensor(router), Experts(gate_up, down, Activation.SILU), 2, renormalize=True).ref
    for t, pair in enumerate([(0, 1), (1, 2), (0, 3), (0, 1)]):
        want = 0.0
        for e in pair:  # equal logits: equal shares after renormalization
            g, u, d = experts[e]
            want = want + 0.5 * (tf.silu(torch.tensor(x[t] @ g.T)).numpy() * (x[t] @ u.T)) @ d.T
        np.testing.assert_allclose(y[t], want, atol=1e-4)


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from([(4, 4), (4, 2), (3, 1)]), st.data())
@settings(max_examples=40, deadline=None)
def test_attention_equals_torch(
    length: int, queries: int, heads: tuple[int, int], data: st.DataObject
) -> None:
    queries = min(queries, length)
    hq, hkv = heads
    window = data.draw(st.one_of(st.none(), st.integers(1, length + 1)))
    softcap = data.draw(st.sampled_from([None, 5.0]))
    slopes = data.draw(st.sampled_from([None, np.linspace(0.1, 0.5, hq).astype(np.float32)]))
    q, k, v = normal(queries, hq, 8), normal(length, hkv, 8), normal(length, hkv, 6)
    spec = AttentionSpec(hq, hkv, 8, 6, 0.3, window, softcap, slopes)
    positions = np.arange(length - queries, length, dtype=np.int32)
    scores = torch.einsum("thd,lhd->htl", torch.tensor(q), torch.tensor(k).repeat_interleave(hq // hkv, 1))
    scores = scores * 0.3
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    relative = torch.arange(length)[None] - torch.tensor(positions)[:, None]
    if slopes is not None:
        scores = scores + torch.tensor(slopes)[:, None, None] * relative
    visible = relative <= 0
    if window is not None:
        visible &= relative > -window
    p = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    want = torch.einsum("htl,lhd->thd", p, torch.tensor(v).repeat_interleave(hq // hkv, 1)).numpy()
    np.testing.assert_allclose(attend(q, k, v, positions, spec), want, atol=2e-5)


def test_sinks_take_part_in_the_sum_only() -> None:
    q, k, v = normal(1, 2, 4), normal(3, 2, 4), normal(3, 2, 4)
    plain = attend(q, k, v, np.int32([2]), AttentionSpec(2, 2, 4, 4, 1.0))
    low = AttentionSpec(2, 2, 4, 4, 1.0, sinks=np.float32([-100, -100]))
    np.testing.assert_allclose(attend(q, k, v, np.int32([2]), low), plain, atol=1e-6)
    high = AttentionSpec(2, 2, 4, 4, 1.0, sinks=np.float32([100, -100]))
    got = attend(q, k, v, np.int32([2]), high)
    assert np.abs(got[0, 0]).max() < 1e-6
    np.testing.assert_allclose(got[0, 1], plain[0, 1], atol=1e-6)


def test_rotation_layouts_agree_after_reordering() -> None:
    x, angles = normal(5, 2, 12), normal(5, 4)
    cos, sin = np.cos(angles), np.sin(angles)
    halves = rotate(x, cos, sin, interleaved=False)
    order = np.arange(8).reshape(2, 4).T.reshape(-1)  # (i, i + 4) -> (2i, 2i + 1)
    mixed = x.copy()
    mixed[..., :8] = x[..., :8][..., order]
    pairs = rotate(mixed, cos, sin, interleaved=True)
    np.testing.assert_allclose(pairs[..., :8], halves[..., :8][..., order], atol=1e-6)
    np.testing.assert_array_equal(pairs[..., 8:], x[..., 8:])
    np.testing.assert_allclose(np.linalg.norm(halves, axis=2), np.linalg.norm(x, axis=2), rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("f32", 0), ("f16", 1e-3), ("bf16", 1e-2), ("int8", 2e-2), ("int16", 3e-5)]
)
def test_pages_store_load_and_copy(dtype: str, tolerance: float) -> None:
    cache = ReferenceKVCache([KVSpec(2, 4, 6, dtype)] * 2, num_pages=5, page_size=3)
    layer, k, v = cache.layer(1), normal(7, 2, 4), normal(7, 2, 6)
    table = np.int32([4, 1, 2])
    where = np.arange(7)
    layer.store((table[where // 3] * 3 + where % 3).astype(np.int32), k, v)
    got_k, got_v = layer.load(table, 7)
    np.testing.assert_allclose(got_k, k, atol=tolerance * 4)
    np.testing.assert_allclose(got_v, v, atol=tolerance * 4)
    cache.copy_pages([(4, 0), (0, 3)])  # all are read before any is written
    np.testing.assert_array_equal(layer.load(np.int32([0, 1, 2]), 7)[0], got_k)
    assert not layer.load(np.int32([3]), 3)[0].any()
    assert cache.nbytes == 15 * 2 * KVSpec(2, 4, 6, dtype).bytes_per_token


def test_tensors_are_opaque() -> None:
    x = tensor(normal(2, 4))
    for attempt in (lambda: x[0], lambda: x + x, lambda: x * 2, lambda: len(x), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="opaque"):
            attempt()


def test_embed_and_gather() -> None:
    table = normal(10, 4)
    batch = ForwardBatch(
        token_ids=np.int32([3, 9, 1]),
        positions=np.int32([0, 1, 5]),
        slots=np.int32([0, 1, 2]),
        query_start=np.int32([0, 2, 3]),
        context_lens=np.int32([2, 6]),
        page_tables=np.int32([[0], [1]]),
        sampled=np.int32([1, 2]),
    )
    inputs = Inputs(batch)
    x = OPS.embed(inputs, BACKEND.pack([Weight.dense(table)]), scale=2.0)
    np.testing.assert_array_equal(x.ref, 2 * table[[3, 9, 1]])
    np.testing.assert_array_equal(OPS.gather_rows(inputs, x).ref, x.ref[[1, 2]])


def test_best_of_rows() -> None:
    """Of equals the lower indices; what is no number is greater than all else, infinity included."""
    nan, inf = np.nan, np.inf
    rows = np.float32([[1, 2, 2, 2], [0, 0, 0, 0], [1, nan, inf, nan], [-inf, inf, 1, inf]])
    np.testing.assert_array_equal(best(rows, 2), [[1, 2], [0, 1], [1, 3], [1, 3]])
    np.testing.assert_array_equal(best(rows, 3), [[1, 2, 3], [0, 1, 2], [1, 2, 3], [1, 2, 3]])
