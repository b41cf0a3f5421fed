"""Native latent attention, per-head projections and grouped routing against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import (
    F32,
    Activation,
    AttentionSpec,
    Experts,
    Inputs,
    KVSpec,
    Ops,
    Rotary,
    Routing,
    Rows,
    Tensor,
)
from octavo.kernels.program import Buffer
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.weight import Weight
from support.attention import round_queries
from support.kernels import LAYOUTS, batch_on, limits_of, normal, random_weight, tokens_batch

BACKENDS = [CpuBackend(threads, isa) for isa in instruction_sets() for threads in (1, 2)]
BY_NAME = {f"{b.isa}-{b.threads}": b for b in BACKENDS}
REFERENCE = ReferenceBackend()
every_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
DTYPES = ("f32", "f16", "bf16", "int8", "int16")
TOLERANCE = {
    "f32": 1e-5,
    "f16": 1e-5,
    "bf16": 1e-5,
    "int8": 2e-4,
    "int16": 4e-4,
}  # test_cpu_attention.py says why


# --- pages of latents -------------------------------------------------------------------------------


class Case:
    """Sequences of random [q_latent | q_rope | latent | k_rope] rows on shared random pages."""

    def __init__(
        self, seed: int, lengths: Sequence[int], shape: tuple[int, int, int], page_size: int, dtype: str
    ) -> None:
        self.rng, self.page_size, self.lengths = np.random.default_rng(seed), page_size, list(lengths)
        heads, rank, rope = shape
        self.widths = (heads * rank, heads * rope, rank, rope)
        self.spec = AttentionSpec(heads, 1, rank + rope, rank, (rank + rope) ** -0.5, latent=True)
        self.kv = KVSpec(1, rank + rope, rank, dtype, latent=True)
        self.rows = [normal(self.rng, n, sum(self.widths)) for n in lengths]
        angles = self.rng.uniform(0, 7, (max(lengths), rope // 2)).astype(np.float32)
        self.rotary = Rotary(np.cos(angles), np.sin(angles), interleaved=bool(seed % 2))
        width = max(-(-n // page_size) for n in lengths)
        self.pages = width * len(lengths) + 2
        order = self.rng.permutation(self.pages)[: width * len(lengths)]
        self.tables = order.reshape(-1, width).astype(np.int32)

    def apply(self, ops: Ops, inputs: Inputs, parts: list[Tensor], layer: Any) -> Tensor:
        q = ops.latent_append(
            inputs, (parts[0], parts[1]), (parts[2], parts[3]), layer, self.spec, self.rotary
        )
        return ops.attention(inputs, q, layer, self.spec)

    def step(self, backend: Any, cache: Any, batch: ForwardBatch, rows: F32) -> F32:
        ends = np.cumsum(self.widths)[:-1]
        parts = [np.ascontiguousarray(part) for part in np.split(rows, ends, axis=1)]
        if backend is REFERENCE:
            tensors = [Tensor(Rows.TOKENS, p.shape[1], p) for p in parts]
            inputs, layer = Inputs(batch), cache.layer(0)
            q = REFERENCE.ops.latent_append(
                inputs, (tensors[0], tensors[1]), (tensors[2], tensors[3]), layer, self.spec, self.rotary
            )
            heads = round_queries(q.ref.reshape(len(rows), self.spec.num_heads, -1), self.kv.dtype)
            q = Tensor(q.rows, q.width, heads.reshape(q.ref.shape))
            result: F32 = REFERENCE.ops.attention(inputs, q, layer, self.spec).ref
            return result
        ops = backend.eager(batch, limits_of(batch))
        tensors = [ops.tensor(p, Buffer(Rows.TOKENS, p.shape[1])) for p in parts]
        return np.asarray(ops.value(self.apply(ops, Inputs(batch), tensors, cache.layer(0))))

    def run(self, backend: Any, cuts: Sequence[Sequence[int]]) -> list[F32]:
        """Outputs of each sequence, cut into chunks of these lengths."""
        cache = backend.kv_cache([self.kv], self.pages, self.page_size)
        out: list[list[F32]] = [[] for _ in cuts]
        done = [0] * len(cuts)
        for i in range(max(map(len, cuts))):
            who = [s for s, c in enumerate(cuts) if i < len(c)]
            counts = [cuts[s][i] for s in who]
            rows = np.concatenate([self.rows[s][done[s] :][:n] for s, n in zip(who, counts, strict=True)])
            for s, n in zip(who, counts, strict=True):
                done[s] += n
            batch = batch_on(self.rng, self.tables[who], [done[s] for s in who], counts, self.page_size)
            y = self.step(backend, cache, batch, rows)
            for s, part in zip(who, np.split(y, batch.query_start[1:-1]), strict=True):
                out[s].append(part)
        return [np.concatenate(parts) for parts in out]


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 32, 8), (1, 40, 6), (16, 128, 64), (7, 24, 16)])
def test_latent_attention_equals_the_reference(
    backend: CpuBackend, dtype: str, shape: tuple[int, int, int]
) -> None:
    lengths = [1, 70, 290]
    case = Case(sum(shape), lengths, shape, 16, dtype)
    cuts = [[n] for n in lengths]
    for got, want in zip(case.run(backend, cuts), case.run(REFERENCE, cuts), strict=True):
        np.testing.assert_allclose(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@given(
    st.integers(0, 2**32),
    st.sampled_from(list(BY_NAME)),
    st.sampled_from([1, 3, 16, 24, 256]),
    st.sampled_from(DTYPES),
)
@settings(max_examples=40)
def test_bits_do_not_depend_on_the_cut(seed: int, name: str, page_size: int, dtype: str) -> None:
    """Each prompt whole and alone on one thread, against random chunks side by side on other pages."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 400, 3).tolist()
    shape = ((5, 40, 8), (2, 16, 16))[seed % 2]
    whole = Case(seed, lengths, shape, 16, dtype)
    cuts = []
    for n in lengths:
        points = np.unique(rng.integers(0, n + 1, rng.integers(0, 6)))
        cuts.append([int(p) for p in np.diff([0, *points, n]) if p])
    paged = Case(seed, lengths, shape, page_size, dtype)
    backend = BY_NAME[name]
    together = paged.run(backend, cuts)
    alone = whole.run(BY_NAME[f"{backend.isa}-1"], [[n] for n in lengths])
    for got, want in zip(together, alone, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_latent_is_stored_once_and_copied_whole(dtype: str) -> None:
    backend = BACKENDS[0]
    case = Case(4, [20], (2, 16, 8), 4, dtype)
    cache = backend.kv_cache([case.kv] * 2, 12, 4)
    assert cache.nbytes == 2 * 12 * 4 * case.kv.bytes_per_token
    case.tables = np.int32([[7, 1, 9, 0, 2]])
    before = case.step(backend, cache, batch_on(case.rng, case.tables, [20], [20], 4), case.rows[0])
    cache.copy_pages([(7, 8)])
    moved = batch_on(case.rng, np.int32([[8, 1, 9, 0, 2]]), [20], [1], 4)
    after = case.step(backend, cache, moved, case.rows[0][-1:])
    np.testing.assert_array_equal(after[0], before[-1])


def test_pages_of_another_kind_are_refused() -> None:
    backend = BACKENDS[0]
    case = Case(4, [3], (2, 16, 8), 4, "f32")
    batch = batch_on(case.rng, case.tables, [3], [3], 4)
    plain = backend.kv_cache([KVSpec(1, 24, 16, "f32")], 4, 4)
    with pytest.raises(ValueError, match="needs pages of latents"):
        case.step(backend, plain, batch, case.rows[0])
    case.rotary = Rotary(case.rotary.cos[:, 1:], case.rotary.sin[:, 1:])
    with pytest.raises(ValueError, match="beside its latent"):
        case.step(backend, backend.kv_cache([case.kv], 4, 4), batch, case.rows[0])


# --- each head by its own matrix --------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("kind", LAYOUTS)
def test_heads_meet_their_own_matrices(backend: CpuBackend, kind: str) -> None:
    rng = np.random.default_rng(7)
    heads, n, k = 5, 24, 64
    weights = [random_weight(rng, kind, n, k) for _ in range(heads)]
    native, reference = ([b.pack([w]) for w in weights] for b in (backend, REFERENCE))
    x = normal(rng, 19, heads * k)
    ops = backend.eager(tokens_batch(19), limits_of(tokens_batch(19)))
    got = ops.value(ops.head_linear(ops.tensor(x, Buffer(Rows.TOKENS, x.shape[1])), native))
    want = REFERENCE.ops.head_linear(Tensor(Rows.TOKENS, x.shape[1], x), reference).ref
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    one = backend.eager(tokens_batch(1), limits_of(tokens_batch(1)))
    alone = one.value(one.head_linear(one.tensor(x[7:8], Buffer(Rows.TOKENS, x.shape[1])), native))
    np.testing.assert_array_equal(alone[0], got[7])


def test_a_matrix_for_each_head() -> None:
    backend = BACKENDS[0]
    one = backend.pack([Weight.dense(np.ones((4, 8), np.float32))])
    other = backend.pack([Weight.dense(np.ones((5, 8), np.float32))])
    ops = backend.eager(tokens_batch(1), limits_of(tokens_batch(1)))
    x = ops.tensor(np.ones((1, 16), np.float32), Buffer(Rows.TOKENS, 16))
    with pytest.raises(ValueError, match="3 weights of 8 columns cannot meet rows of width 16"):
        ops.head_linear(x, [one] * 3)
    with pytest.raises(ValueError, match="one shape and layout"):
        ops.head_linear(x, [one, other])


# --- routing ----------------------------------------------------------------------------------------

EXPERTS, HIDDEN = 12, 16


def routed(backend: Any, router: F32, top_k: int, renormalize: bool, routing: Routing | None) -> F32:
    """Experts that answer one-hot with their number, so that y [T, EXPERTS] are the shares themselves."""
    gate = np.zeros((2, HIDDEN), np.float32)
    gate[:, 0] = 1.0
    gate_up = backend.pack([Weight.dense(gate), Weight.dense(gate)], gated=True)
    down = []
    for e in range(EXPERTS):
        answer = np.zeros((EXPERTS, 2), np.float32)
        answer[e, 0] = 1.0
        down.append(backend.pack([Weight.dense(answer)]))
    x = np.zeros((len(router), HIDDEN), np.float32)
    x[:, 0] = 1.0  # relu(1) * 1 = 1
    batch, arguments = tokens_batch(len(router)), (Experts([gate_up] * EXPERTS, down, Activation.RELU), top_k)
    if backend is REFERENCE:
        # The reference adds to zeros of x's width, which here is not the answers'.
        from octavo.kernels.reference_math import route

        chosen, share = route(router, top_k, renormalize, routing or Routing())
        y = np.zeros((len(router), EXPERTS), np.float32)
        np.put_along_axis(y, chosen, share, axis=1)
        return y
    ops = backend.eager(batch, limits_of(batch))
    tensors = [ops.tensor(a, Buffer(Rows.TOKENS, a.shape[1])) for a in (x, router)]
    return np.asarray(ops.value(ops.moe(*tensors, *arguments, renormalize, routing)))


BIAS = np.linspace(-0.4, 0.4, EXPERTS).astype(np.float32)[::-1].copy()
ROUTINGS = {
    "softmax": None,
    "scaled": Routing(scale=2.5),
    "groups": Routing(groups=4, top_groups=2),
    "one group": Routing(groups=3, top_groups=1, group_top=2, scale=0.5),
    "sigmoid": Routing(sigmoid=True),
    "biased": Routing(sigmoid=True, bias=BIAS),
    "deepseek-v3": Routing(sigmoid=True, bias=BIAS, groups=4, top_groups=2, group_top=2, scale=2.5),
    "groups of one": Routing(groups=EXPERTS, top_groups=5),
}


@every_backend
@pytest.mark.parametrize("name", list(ROUTINGS))
def test_routing_equals_the_reference(backend: CpuBackend, name: str) -> None:
    """The same experts to the last one, ties too: shares of those that are not chosen are 0."""
    rng = np.random.default_rng(3)
    router = normal(rng, 40, EXPERTS) * 3
    router[1] = 1.0  # all equal
    router[2, ::3] = router[2].max() + 1  # equal across groups
    router[3:20] = rng.integers(-1, 2, (17, EXPERTS))  # ties everywhere
    for top_k in (1, 2, 4):
        for renormalize in (False, True):
            got = routed(backend, router, top_k, renormalize, ROUTINGS[name])
            want = routed(REFERENCE, router, top_k, renormalize, ROUTINGS[name])
            np.testing.assert_array_equal(got != 0, want != 0)
            np.testing.assert_allclose(got, want, rtol=2e-6)


@every_backend
def test_of_equals_the_lower_are_chosen(backend: CpuBackend) -> None:
    router = np.zeros((3, EXPERTS), np.float32)
    router[1, 5:] = 1.0
    router[2, [2, 7]] = 1.0, -1.0
    for each in (backend, REFERENCE):
        chosen = [np.flatnonzero(row).tolist() for row in routed(each, router, 3, False, None)]
        assert chosen == [[0, 1, 2], [5, 6, 7], [0, 1, 2]]


def test_impossible_routings_are_refused() -> None:
    router = np.zeros((1, EXPERTS), np.float32)
    for routing, top_k, message in (
        (Routing(groups=5), 1, "groups of one size"),
        (Routing(groups=4, top_groups=5), 1, "top_groups exceeds"),
        (Routing(groups=4, top_groups=1), 4, "top_k exceeds the experts of top_groups"),
        (Routing(groups=4, top_groups=2, group_top=4), 1, "group_top exceeds"),
        (None, EXPERTS + 1, "top_k exceeds the experts"),
    ):
        with pytest.raises(ValueError, match=message):
            routed(BACKENDS[0], router, top_k, False, routing)


def test_not_a_number_still_routes_somewhere() -> None:
    """A row that went bad harms only itself: distinct experts, and its neighbours' bits stay."""
    router = normal(np.random.default_rng(5), 3, EXPERTS)
    clean = routed(BACKENDS[0], router, 4, True, ROUTINGS["deepseek-v3"])
    router[1] = np.nan
    got = routed(BACKENDS[0], router, 4, True, ROUTINGS["deepseek-v3"])
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])
    assert np.isnan(got[1]).any()
