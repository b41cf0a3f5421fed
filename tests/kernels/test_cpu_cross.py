"""What an encoder-decoder asks of attention: whole contexts, relative bias, pages of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, AttentionSpec, Backend, Inputs, KVSpec, Limits, Ops, Sight, Tensor
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_math import attend
from octavo.kernels.weight import Weight
from support.kernels import batch_on, normal

NATIVE = [CpuBackend(threads, isa) for isa in instruction_sets() for threads in (1, 2)]
REFERENCE = ReferenceBackend()
SOURCES, PROMPTS = (1, 33, 70, 300), (5, 1, 40, 290)
HEADS, DIM = 4, 16
WIDTH = HEADS * DIM

every_native = pytest.mark.parametrize("backend", NATIVE, ids=lambda b: f"{b.isa}-{b.threads}")


def spec_of(sight: Sight, reach: int | None) -> AttentionSpec:
    spec = AttentionSpec(HEADS, HEADS, DIM, DIM, DIM**-0.5, sight=sight)
    if reach is None:
        return spec
    return replace(spec, relative_bias=2 * normal(np.random.default_rng(9), HEADS, 2 * reach + 1))


def projection(seed: int, rows: int) -> Weight:
    """Of rows of 3 * WIDTH, whose products keep their size."""
    return Weight.dense(
        normal(np.random.default_rng(seed), rows, 3 * WIDTH) * np.float32((3 * WIDTH) ** -0.5)
    )


class Run:
    """Random keys, values and queries through one backend: sources first, then prompts that see them."""

    def __init__(self, backend: Backend, spec: AttentionSpec, dtype: str, page_size: int) -> None:
        self.spec, self.page_size = spec, page_size
        self.rng = np.random.default_rng(2)
        table = Weight.dense(normal(np.random.default_rng(1), 400, 3 * WIDTH))
        self.table = backend.pack([table])
        pages = [-(-n // page_size) for n in (*SOURCES, *PROMPTS)]
        order = self.rng.permutation(sum(pages)).astype(np.int32)
        self.tables = np.zeros((len(pages), max(pages)), np.int32)
        for i, count in enumerate(pages):
            self.tables[i, :count] = order[sum(pages[:i]) :][:count]
        kv = backend.kv_cache([KVSpec(HEADS, DIM, DIM, dtype)], sum(pages), page_size).layer(0)
        limits = Limits(sum(SOURCES) + sum(PROMPTS), 8, 8, max(pages))
        only_kv = backend.pack([projection(3, 2 * WIDTH)])

        def store(ops: Ops, inputs: Inputs) -> Tensor:
            x = ops.embed(inputs, self.table)
            ops.append(inputs, ops.linear(x, only_kv), kv, spec)
            return x

        def read(ops: Ops, inputs: Inputs) -> Tensor:
            x = ops.embed(inputs, self.table)
            if spec.sight is not Sight.CROSS:
                return ops.attention(inputs, ops.rotary_append(inputs, x, kv, spec, None), kv, spec)
            q = ops.linear(x, queries)
            return ops.attention(inputs, q, kv, spec)

        queries = backend.pack([projection(4, WIDTH)])
        self.store, self.read = backend.capture(store, limits), backend.capture(read, limits)

    def encode(self, which: Sequence[int]) -> None:
        lengths = [SOURCES[s] for s in which]
        self.store.replay(self._batch(self.tables[list(which)], lengths, lengths, which))

    def outputs(self, which: Sequence[int]) -> list[F32]:
        """Of these prompts, computed together; each sees the source of its number."""
        lengths = [PROMPTS[s] for s in which]
        tables = np.ascontiguousarray(self.tables[[len(SOURCES) + s for s in which]])
        batch = replace(
            self._batch(tables, lengths, lengths, which),
            cross_lens=np.array([SOURCES[s] for s in which], np.int32),
            cross_tables=np.ascontiguousarray(self.tables[list(which)]),
        )
        return list(np.split(self.read.replay(batch).copy(), np.cumsum(lengths)[:-1]))

    def _batch(
        self, tables: np.ndarray, lengths: Sequence[int], counts: Sequence[int], which: Sequence[int]
    ) -> ForwardBatch:
        batch = batch_on(self.rng, tables, lengths, counts, self.page_size)
        tokens = [np.random.default_rng(s).integers(0, 400, n) for s, n in zip(which, counts, strict=True)]
        return replace(batch, token_ids=np.concatenate(tokens).astype(np.int32))


CASES = [
    (Sight.WHOLE, None),
    (Sight.WHOLE, 3),
    (Sight.WHOLE, 128),
    (Sight.WHOLE, 1000),
    (Sight.CAUSAL, 0),
    (Sight.CAUSAL, 20),
    (Sight.CROSS, None),
]


@every_native
@pytest.mark.parametrize("dtype", ["f32", "f16", "int8", "int16"])
@pytest.mark.parametrize(("sight", "reach"), CASES)
def test_equals_the_reference(backend: CpuBackend, dtype: str, sight: Sight, reach: int | None) -> None:
    for page_size in (16, 5):
        ours, theirs = (Run(b, spec_of(sight, reach), dtype, page_size) for b in (backend, REFERENCE))
        for run in (ours, theirs):
            run.encode(range(4))
        for got, want in zip(ours.outputs(range(4)), theirs.outputs(range(4)), strict=True):
            tolerance = (
                1e-5 if dtype == "f32" else 2e-4
            )  # a product at the edge may be stored as its neighbour
            assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


@every_native
@pytest.mark.parametrize(("sight", "reach"), CASES)
def test_neighbours_do_not_change_a_bit(backend: CpuBackend, sight: Sight, reach: int | None) -> None:
    together, alone = (Run(backend, spec_of(sight, reach), "f16", 16) for _ in range(2))
    together.encode(range(4))
    every = together.outputs(range(4))
    for s in range(4):
        alone.encode([s])
        np.testing.assert_array_equal(alone.outputs([s])[0], every[s])


@pytest.mark.parametrize(("sight", "reach"), CASES)
def test_the_reference_is_the_definition(sight: Sight, reach: int | None) -> None:
    """One score after the other, in float64."""
    spec, rng = spec_of(sight, reach), np.random.default_rng(6)
    q, k, v = normal(rng, 3, HEADS, DIM), normal(rng, 37, HEADS, DIM), normal(rng, 37, HEADS, DIM)
    positions = np.array([20, 21, 22], np.int32)
    got = attend(q, k, v, positions, spec)
    for t, p in enumerate(positions):
        for h in range(HEADS):
            seen = range(int(p) + 1) if sight is Sight.CAUSAL else range(37)
            scores = []
            for j in seen:
                score = float(q[t, h].astype(float) @ k[j, h]) * spec.scale
                if spec.relative_bias is not None and reach is not None:
                    score += float(spec.relative_bias[h, min(max(j - int(p), -reach), reach) + reach])
                scores.append(score)
            weights = np.exp(np.array(scores) - max(scores))
            want = (weights / weights.sum()) @ v[: len(scores), h].astype(float)
            np.testing.assert_allclose(got[t, h], want, atol=1e-5)


def test_a_window_is_for_causal_attention_only() -> None:
    with pytest.raises(ValueError, match="only causal"):
        AttentionSpec(1, 1, 16, 16, 1.0, window=4, sight=Sight.WHOLE)


@pytest.mark.parametrize("backend", [NATIVE[0], REFERENCE], ids=["cpu", "reference"])
def test_cross_attention_without_an_encoder_is_refused(backend: Backend) -> None:
    run = Run(backend, spec_of(Sight.CROSS, None), "f32", 16)
    lengths = [PROMPTS[0]]
    with pytest.raises(ValueError, match="needs the encoder's pages"):
        run.read.replay(run._batch(run.tables[4:5], lengths, lengths, [0]))


@every_native
def test_what_would_read_out_of_bounds_is_refused(backend: CpuBackend) -> None:
    run = Run(backend, spec_of(Sight.CROSS, None), "f32", 16)
    plain = run._batch(run.tables[4:5], [5], [5], [0])
    good_lens, good_table = np.array([1], np.int32), np.ascontiguousarray(run.tables[:1])
    bad = [
        (np.array([0], np.int32), good_table, "empty"),
        (np.array([320], np.int32), np.ascontiguousarray(run.tables[:1, :2]), "longer than its page table"),
        (good_lens, np.array([[10**6]], np.int32), "outside the KV cache"),
        (np.array([1, 1], np.int32), good_table, "differ in length"),
    ]
    for lens, table, message in bad:
        with pytest.raises(ValueError, match=message):
            run.read.replay(replace(plain, cross_lens=lens, cross_tables=table))
