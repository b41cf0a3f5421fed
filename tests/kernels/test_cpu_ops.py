"""Native row ops, MoE and rotary against the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import (
    F32,
    Activation,
    AttentionSpec,
    Experts,
    HeadNorms,
    Inputs,
    KVSpec,
    Ops,
    Rotary,
    Rows,
    Tensor,
)
from octavo.kernels.program import Buffer
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.weight import Weight
from support.kernels import (
    CODED,
    LAYOUTS,
    STEPPED,
    batch_of,
    columns,
    limits_of,
    normal,
    random_weight,
    tokens_batch,
)

BACKENDS = [CpuBackend(threads, isa) for isa in instruction_sets() for threads in (1, 2)]
REFERENCE = ReferenceBackend()
Apply = Callable[[Ops, Inputs, list[Tensor]], Tensor]


def eagerly(
    backend: CpuBackend, batch: ForwardBatch, apply: Apply, *arrays: F32, rows: Rows = Rows.TOKENS
) -> F32:
    ops = backend.eager(batch, limits_of(batch))
    return ops.value(apply(ops, Inputs(batch), [ops.tensor(x, Buffer(rows, x.shape[1])) for x in arrays]))


def by_reference(batch: ForwardBatch, apply: Apply, *arrays: F32) -> F32:
    tensors = [Tensor(Rows.TOKENS, x.shape[1], x) for x in arrays]
    result: F32 = apply(REFERENCE.ops, Inputs(batch), tensors).ref
    return result


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
@pytest.mark.parametrize("width", [1, 7, 16, 33, 64, 100, 576])
def test_rows_to_rows(backend: CpuBackend, width: int) -> None:
    rng = np.random.default_rng(width)
    gain, bias = normal(rng, width), normal(rng, width)
    for rows in (1, 5):
        batch, x, y = tokens_batch(rows), normal(rng, rows, width) * 3 + 1, normal(rng, rows, width)
        cases: list[Apply] = [
            lambda ops, _, t: ops.rms_norm(t[0], gain, 1e-5),
            lambda ops, _, t: ops.layer_norm(t[0], gain, bias, 1e-5),
            lambda ops, _, t: ops.layer_norm(t[0], gain, None, 1e-5),
            lambda ops, _, t: ops.add(t[0], t[1]),
            lambda ops, _, t: ops.add(t[0], t[0]),
        ]
        for case in cases:
            want = by_reference(batch, case, x, y)
            # layer_norm subtracts a mean of 1: an ulp of x is more than an ulp of x - mean
            np.testing.assert_allclose(eagerly(backend, batch, case, x, y), want, rtol=3e-6, atol=3e-6)
        gate = normal(rng, rows, 1) * 5

        def gated(ops: Ops, _: Inputs, t: list[Tensor]) -> Tensor:
            return ops.gate_rows(t[0], t[1])

        want = by_reference(batch, gated, x, gate)
        np.testing.assert_allclose(eagerly(backend, batch, gated, x, gate), want, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
@pytest.mark.parametrize("kind", [*LAYOUTS, *CODED, *STEPPED])
def test_embedding_is_exact(backend: CpuBackend, kind: str) -> None:
    rng, k = np.random.default_rng(0), columns(kind, 64)
    w = random_weight(rng, kind, 50, k)
    batch = batch_of(rng, [9, 4, 30], [3, 4, 1])
    table = w.dequantize()
    packed = backend.pack([w])
    got = eagerly(backend, batch, lambda ops, inputs, _: ops.embed(inputs, packed))
    np.testing.assert_array_equal(got, table[batch.token_ids])
    scaled = eagerly(backend, batch, lambda ops, inputs, _: ops.embed(inputs, packed, 1.7))
    np.testing.assert_array_equal(scaled, table[batch.token_ids] * np.float32(1.7))
    x = normal(rng, batch.num_tokens, k)
    placed = eagerly(backend, batch, lambda ops, inputs, t: ops.embed_positions(inputs, t[0], packed, 2), x)
    np.testing.assert_array_equal(placed, x + table[batch.positions + 2])


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
def test_gather(backend: CpuBackend) -> None:
    rng = np.random.default_rng(0)
    batch = batch_of(rng, [9, 4, 30], [3, 4, 1])
    x = normal(rng, batch.num_tokens, 33)
    got = eagerly(backend, batch, lambda ops, inputs, t: ops.gather_rows(inputs, t[0]), x)
    np.testing.assert_array_equal(got, x[batch.sampled])


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
@pytest.mark.parametrize(
    ("kind", "renormalize"),
    [
        ("f32", True),
        ("f32", False),
        ("u4-min", True),
        ("s8", False),
        ("u4-zero-order", True),
        ("s8-row", False),
        ("f8", True),
        ("u2", True),
        ("u3", False),
        ("k4", True),
        ("k5", False),
        ("k6", True),
        ("c4", False),
    ],
)
def test_mixture_of_experts(backend: CpuBackend, kind: str, renormalize: bool) -> None:
    rng = np.random.default_rng(1)
    experts, hidden, inner = (6, 64, 96) if kind not in STEPPED else (6, 256, 256)
    gate_up = [[random_weight(rng, kind, inner, hidden) for _ in range(2)] for _ in range(experts)]
    down = [random_weight(rng, kind, hidden, inner) for _ in range(experts)]
    scale = np.float32(0.1)

    def weights_of(any_backend: CpuBackend | ReferenceBackend) -> tuple[list[object], list[object]]:
        return [any_backend.pack(w, gated=True) for w in gate_up], [any_backend.pack([w]) for w in down]

    native, reference = weights_of(backend), weights_of(REFERENCE)
    rows = 17
    x, router = normal(rng, rows, hidden) * scale, normal(rng, rows, experts) * 2
    router[3] = 1.0  # all equal
    router[4, :3] = router[4].max() + 1
    for top_k in (1, 2, experts):

        def apply(weights: tuple[list[object], list[object]], top_k: int = top_k) -> Apply:
            return lambda ops, _, t: ops.moe(
                t[0],
                t[1],
                Experts(weights[0], weights[1], Activation.SILU),  # type: ignore[arg-type]
                top_k,
                renormalize,
            )

        got = eagerly(backend, tokens_batch(rows), apply(native), x, router)
        want = by_reference(tokens_batch(rows), apply(reference), x, router)
        if kind in ("f32", "f8"):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
        else:  # a hidden value on the edge of two integers may round either way
            assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
            assert np.median(np.abs(got - want)) < 1e-4 * np.abs(want).max()
        alone = eagerly(backend, tokens_batch(1), apply(native), x[5:6], router[5:6])
        np.testing.assert_array_equal(alone[0], got[5])


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
@pytest.mark.parametrize("rotary_dim", [0, 8, 32, 40])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("normed", ["no", "each head", "all heads"])
def test_rotation(backend: CpuBackend, rotary_dim: int, interleaved: bool, normed: str) -> None:
    rng = np.random.default_rng(2)
    spec = AttentionSpec(4, 2, 40, 24, 1.0)
    batch = batch_of(rng, [9, 4, 30], [3, 4, 1])
    angles = rng.uniform(0, 7, (32, rotary_dim // 2)).astype(np.float32)
    rotary = Rotary(np.cos(angles), np.sin(angles), interleaved) if rotary_dim else None
    norms: tuple[F32 | None, F32 | None] = (None, None)
    if normed != "no":
        q_heads, k_heads = (1, 1) if normed == "each head" else (4, 2)
        norms = normal(rng, q_heads * 40), normal(rng, k_heads * 40)
    qkv = normal(rng, batch.num_tokens, 4 * 40 + 2 * 40 + 2 * 24)
    caches = [b.kv_cache([KVSpec(2, 40, 24, "f32")], 8, 16) for b in (backend, REFERENCE)]

    def apply(cache: object) -> Apply:
        layer = cache.layer(0)  # type: ignore[attr-defined]
        return lambda ops, inputs, t: ops.rotary_append(inputs, t[0], layer, spec, rotary, HeadNorms(*norms))

    got = eagerly(backend, batch, apply(caches[0]), qkv)
    want = by_reference(batch, apply(caches[1]), qkv)
    if normed != "no":
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


def test_models_of_other_backends_are_refused() -> None:
    backend = BACKENDS[0]
    batch = tokens_batch(1)
    foreign = REFERENCE.pack([Weight.dense(np.ones((4, 4), np.float32))])
    with pytest.raises(TypeError, match="another backend"):
        eagerly(backend, batch, lambda ops, _, t: ops.linear(t[0], foreign), np.ones((1, 4), np.float32))
