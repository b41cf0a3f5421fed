"""Row ops, rotation and experts of the GPU backend against the reference."""

from __future__ import annotations

import numpy as np
import pytest

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
    Routing,
    Rows,
    Tensor,
)
from octavo.kernels.weight import Weight
from support.cuda import REFERENCE, Apply, by_reference, interpreted, run
from support.kernels import batch_of, normal, random_weight, tokens_batch

# NumPy warns of infinities under the interpreter; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("width", [1, 33, 100])
def test_rows_to_rows(width: int) -> None:
    rng = np.random.default_rng(width)
    backend, rows = interpreted(), 21
    gain, bias = normal(rng, width), normal(rng, width)
    batch, x, y = tokens_batch(rows), normal(rng, rows, width) * 3 + 1, normal(rng, rows, width)
    gate = normal(rng, rows, 1) * 5
    cases: list[tuple[Apply, list[F32]]] = [
        (lambda ops, _, t: ops.rms_norm(t[0], gain, 1e-5), [x]),
        (lambda ops, _, t: ops.layer_norm(t[0], gain, bias, 1e-5), [x]),
        (lambda ops, _, t: ops.layer_norm(t[0], gain, None, 1e-5), [x]),
        (lambda ops, _, t: ops.add(t[0], t[1]), [x, y]),
        (lambda ops, _, t: ops.rms_norm(ops.add(t[0], t[1]), gain, 1e-5), [x, y]),
        (lambda ops, _, t: ops.add(t[0], t[0]), [x]),
        (lambda ops, _, t: ops.gate_rows(t[0], t[1]), [x, gate]),
    ]
    for case, arrays in cases:
        want = by_reference(batch, case, *arrays)
        np.testing.assert_allclose(run(backend, batch, case, *arrays), want, rtol=1e-5, atol=1e-5)


def test_a_sum_that_was_normalized_is_still_there() -> None:
    """The addition is done inside the norm; who reads the sum afterwards gets the same."""
    rng = np.random.default_rng(0)
    x, y, gain = normal(rng, 4, 20), normal(rng, 4, 20), normal(rng, 20)

    def case(ops: Ops, _: Inputs, t: list[Tensor]) -> Tensor:
        total = ops.add(t[0], t[1])
        normed = ops.rms_norm(total, gain, 1e-5)
        return ops.add(total, ops.add(normed, total))

    want = by_reference(tokens_batch(4), case, x, y)
    np.testing.assert_allclose(run(interpreted(), tokens_batch(4), case, x, y), want, rtol=1e-5, atol=1e-5)


def test_norms_of_few_and_of_many_rows() -> None:
    """Bit-exact mode adds each row up by itself."""
    rng = np.random.default_rng(1)
    x, gain = normal(rng, 50, 90), normal(rng, 90)
    backend = interpreted(exact=True)

    def case(ops: Ops, _: Inputs, t: list[Tensor]) -> Tensor:
        return ops.rms_norm(t[0], gain, 1e-5)

    whole = run(backend, tokens_batch(50), case, x)
    np.testing.assert_array_equal(run(backend, tokens_batch(1), case, x[:1]), whole[:1])


def test_gather() -> None:
    rng = np.random.default_rng(0)
    batch, backend = batch_of(rng, [9, 4, 30], [3, 4, 1]), interpreted()
    x = normal(rng, batch.num_tokens, 33)
    got = run(backend, batch, lambda ops, inputs, t: ops.gather_rows(inputs, t[0]), x)
    np.testing.assert_array_equal(got, x[batch.sampled])


@pytest.mark.parametrize("kind", ["f32", "u4"])
def test_logits_alone_are_f32(kind: str) -> None:
    """Whatever rows they are of: those of the last layer are sampled ones, too."""
    import torch

    rng = np.random.default_rng(3)
    batch, backend = batch_of(rng, [9, 4], [3, 4]), interpreted(dtype="bfloat16")
    ops, inputs = backend.eager(batch), Inputs(batch)
    weight = backend.pack([random_weight(rng, kind, 48, 64)])
    x = ops.gather_rows(inputs, ops.tensor(normal(rng, batch.num_tokens, 64), Rows.TOKENS))
    through, read = ops.linear(x, weight), ops.logits(x, weight)
    assert (through.rows, read.rows) == (Rows.SAMPLED, Rows.SAMPLED)
    assert (through.ref.dtype, read.ref.dtype) == (torch.bfloat16, torch.float32)
    np.testing.assert_allclose(ops.value(through), ops.value(read), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("normed", ["no", "each head", "all heads"])
@pytest.mark.parametrize(("rotary_dim", "interleaved"), [(0, False), (8, True), (40, False), (32, True)])
def test_rotation(rotary_dim: int, interleaved: bool, normed: str) -> None:
    rng = np.random.default_rng(2)
    spec, backend = AttentionSpec(3, 2, 40, 24, 1.0), interpreted()
    batch = batch_of(rng, [9, 4, 30], [3, 4, 1])
    angles = rng.uniform(0, 7, (32, rotary_dim // 2)).astype(np.float32)
    rotary = Rotary(np.cos(angles), np.sin(angles), interleaved) if rotary_dim else None
    norms: tuple[F32 | None, F32 | None] = (None, None)
    if normed != "no":
        q_heads, k_heads = (1, 1) if normed == "each head" else (3, 2)
        norms = normal(rng, q_heads * 40), normal(rng, k_heads * 40)
    qkv = normal(rng, batch.num_tokens, 3 * 40 + 2 * 40 + 2 * 24)
    ours, theirs = (b.kv_cache([KVSpec(2, 40, 24, "f32")], 8, 16) for b in (backend, REFERENCE))

    def apply(cache: object) -> Apply:
        layer = cache.layer(0)  # type: ignore[attr-defined]
        return lambda ops, inputs, t: ops.rotary_append(inputs, t[0], layer, spec, rotary, HeadNorms(*norms))

    got, want = run(backend, batch, apply(ours), qkv), by_reference(batch, apply(theirs), qkv)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for mine, its in ((ours.layer(0).k, theirs.layer(0).k), (ours.layer(0).v, theirs.layer(0).v)):
        np.testing.assert_allclose(mine.pages.numpy(), its.pages, rtol=1e-5, atol=1e-5)


ROUTINGS = [
    (None, True),
    (None, False),
    (Routing(groups=4, top_groups=2, scale=2.5), False),
    (Routing(sigmoid=True, bias=np.linspace(-1, 1, 8).astype(np.float32), scale=0.7), True),
    (Routing(True, np.linspace(1, -1, 8).astype(np.float32), 4, 2, 2, 1.5), True),
]


@pytest.mark.parametrize(("routing", "renormalize"), ROUTINGS)
def test_routing(routing: Routing | None, renormalize: bool) -> None:
    """Chosen experts and shares, among equals too."""
    from octavo.kernels.cuda import moe
    from octavo.kernels.reference_math import route

    rng = np.random.default_rng(3)
    logits = normal(rng, 40, 8)
    logits[3] = 1.0  # all equal
    logits[4, :3] = logits[4].max() + 1
    how = routing or Routing()
    constants = interpreted().constants
    for top_k in (1, 2, 4):
        want_e, want_p = route(logits, top_k, renormalize, how)
        import torch

        got_e, got_p = moe.route(torch.tensor(logits), top_k, renormalize, how, constants.optional(how.bias))
        np.testing.assert_array_equal(got_e.numpy(), want_e)
        np.testing.assert_allclose(got_p.numpy(), want_p, rtol=1e-5)


@pytest.mark.parametrize("kind", ["f32", "u4-min", "s8", "f8-blocks", "nf4", "u4-zero-row", "s8-row"])
def test_mixture_of_experts(kind: str) -> None:
    rng = np.random.default_rng(1)
    experts, hidden, inner, rows = 6, 64, 64 if kind == "nf4" else 160, 17
    gate_up = [[random_weight(rng, kind, inner, hidden) for _ in range(2)] for _ in range(experts)]
    down = [random_weight(rng, kind, hidden, inner) for _ in range(experts)]
    x, router = normal(rng, rows, hidden) * np.float32(0.1), normal(rng, rows, experts) * 2
    backend = interpreted()
    mine = [backend.pack(w, gated=True) for w in gate_up], [backend.pack([w]) for w in down]
    plain = [[Weight.dense(w.dequantize()) for w in pair] for pair in gate_up]
    its = (
        [REFERENCE.pack(w, gated=True) for w in plain],
        [REFERENCE.pack([Weight.dense(w.dequantize())]) for w in down],
    )
    nbytes = sum(w.nbytes for w in mine[0] + mine[1])
    for top_k in (1, 3):

        def apply(weights: object, top_k: int = top_k) -> Apply:
            g, d = weights  # type: ignore[misc]
            return lambda ops, _, t: ops.moe(t[0], t[1], Experts(g, d, Activation.SILU), top_k, True)

        want = by_reference(tokens_batch(rows), apply(its), x, router)
        got = run(backend, tokens_batch(rows), apply(mine), x, router)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert sum(w.nbytes for w in mine[0] + mine[1]) == nbytes
    stacked = backend.constants.experts(mine[0])
    assert mine[0][3].parts[0].values.data_ptr() == stacked.values[3].data_ptr()  # not held twice


def test_heads_by_their_own_matrices() -> None:
    rng = np.random.default_rng(5)
    backend = interpreted()
    for kind in ("f32", "s8"):
        weights = [random_weight(rng, kind, 24, 32) for _ in range(3)]
        x = normal(rng, 7, 96)
        mine = [backend.pack([w]) for w in weights]
        its = [REFERENCE.pack([Weight.dense(w.dequantize())]) for w in weights]
        got = run(backend, tokens_batch(7), lambda ops, _, t, w=mine: ops.head_linear(t[0], w), x)
        want = by_reference(tokens_batch(7), lambda ops, _, t, w=its: ops.head_linear(t[0], w), x)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_rows_that_are_nobodys_write_nothing() -> None:
    """A padded token's slot is -1."""
    import dataclasses

    rng = np.random.default_rng(6)
    spec, backend = AttentionSpec(2, 1, 16, 16, 1.0), interpreted()
    batch = batch_of(rng, [9, 4], [1, 1], num_pages=2)
    batch = dataclasses.replace(batch, slots=np.int32([-1, 5]), context_lens=np.int32([0, 4]))
    for dtype in ("f32", "int8"):
        cache = backend.kv_cache([KVSpec(1, 16, 16, dtype)], 2, 16)
        layer = cache.layer(0)

        def case(ops: Ops, inputs: Inputs, t: list[Tensor], layer: object = layer) -> Tensor:
            q = ops.rotary_append(inputs, t[0], layer, spec, None)
            return ops.attention(inputs, q, layer, spec)

        y = run(backend, batch, case, normal(rng, 2, 64), rows=Rows.TOKENS)
        filled = layer.k.pages.float().abs().sum(dim=(1, 3)).nonzero()
        assert filled.tolist() == [[0, 5]]
        assert (y[0] == 0).all()
