"""Capture and replay: equal to eager bit for bit, independent of the batch, safe with bad batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import CapacityError, InvalidRequestError
from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import (
    F32,
    Activation,
    AttentionSpec,
    Backend,
    Inputs,
    KVCache,
    KVSpec,
    Limits,
    Ops,
    PackedWeight,
    Rotary,
    Rows,
    Scaling,
    Tensor,
)
from octavo.kernels.program import Call, Recorder, fuse, max_rows, plan_arena
from octavo.kernels.reference import ReferenceBackend
from octavo.models.rotary import rotary_tables
from support.kernels import batch_of, batch_on, limits_of, normal, random_weight

HIDDEN, VOCAB, LAYERS = 64, 50, 2
SPEC = AttentionSpec(4, 2, 16, 16, 0.25)
LIMITS = Limits(max_tokens=400, max_sequences=16, max_sampled=400, max_pages_per_sequence=40)
BACKENDS = [CpuBackend(threads, isa) for isa in instruction_sets() for threads in (1, 2)]
BY_NAME = {f"{b.isa}-{b.threads}": b for b in BACKENDS}


class TinyModel:
    """Two pre-norm layers over random weights, the same on every backend."""

    def __init__(self, backend: Backend, kind: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)

        def weight(n: int, *more: int, gated: bool = False) -> PackedWeight:
            return backend.pack([random_weight(rng, kind, rows, HIDDEN) for rows in (n, *more)], gated)

        self.gain = [normal(rng, HIDDEN) * np.float32(0.02) for _ in range(2 * LAYERS + 1)]
        self.table = weight(VOCAB)
        self.qkv = [weight(64, 32, 32) for _ in range(LAYERS)]
        self.out = [weight(HIDDEN) for _ in range(LAYERS)]
        self.gate_up = [weight(HIDDEN, HIDDEN, gated=True) for _ in range(LAYERS)]
        self.down = [weight(HIDDEN) for _ in range(LAYERS)]
        self.bias = normal(rng, 128)
        self.rotary: Rotary = rotary_tables(16, 10000.0, 1024)

    def forward(
        self, ops: Ops, inputs: Inputs, kv: KVCache, spec: AttentionSpec = SPEC, early: bool = False
    ) -> Tensor:
        """early: rows are gathered behind the last attention instead of behind the last layer."""
        x = ops.embed(inputs, self.table)
        for i in range(LAYERS):
            normed = ops.rms_norm(x, self.gain[2 * i], 1e-5)
            qkv = ops.linear(normed, self.qkv[i], self.bias)
            q = ops.rotary_append(inputs, qkv, kv.layer(i), spec, self.rotary)
            y = ops.attention(inputs, q, kv.layer(i), spec)
            if early and i == LAYERS - 1:
                x, y = ops.gather_rows(inputs, x), ops.gather_rows(inputs, y)
            x = ops.linear(y, self.out[i], residual=x)
            normed = ops.layer_norm(x, self.gain[2 * i + 1], None, 1e-5)
            hidden = ops.linear(normed, self.gate_up[i], activation=Activation.SILU)
            x = ops.linear(hidden, self.down[i], residual=x, scaling=Scaling(0.1))
        x = x if early else ops.gather_rows(inputs, x)
        x = ops.rms_norm(x, self.gain[-1], 1e-5)
        return ops.linear(x, self.table)


def kv_of(backend: Backend, dtype: str = "f16", pages: int = 200, page_size: int = 16) -> KVCache:
    return backend.kv_cache([KVSpec(2, 16, 16, dtype)] * LAYERS, pages, page_size)


def all_sampled(batch: ForwardBatch) -> ForwardBatch:
    return replace(batch, sampled=np.arange(batch.num_tokens, dtype=np.int32))


def forward_of(model: TinyModel, kv: KVCache) -> Callable[[Ops, Inputs], Tensor]:
    return lambda ops, inputs: model.forward(ops, inputs, kv)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
@pytest.mark.parametrize("kind", ["u4-min", "s8", "f16", "f32"])
def test_replay_equals_eager(backend: CpuBackend, kind: str) -> None:
    model, rng = TinyModel(backend, kind), np.random.default_rng(1)
    kv, other = kv_of(backend), kv_of(backend)
    program = backend.capture(forward_of(model, kv), LIMITS)
    tables = rng.permutation(200)[:60].reshape(3, 20).astype(np.int32)
    for contexts, queries in [
        ([5, 300, 17], [5, 300, 17]),
        ([6, 301, 20], [1, 1, 3]),
        ([7, 302, 21], [1, 1, 1]),
    ]:
        batch = batch_on(rng, tables, contexts, queries, 16)
        ops = backend.eager(batch, limits_of(batch))
        eager = ops.value(model.forward(ops, Inputs(batch), other))
        np.testing.assert_array_equal(program.replay(batch), eager)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
def test_unquantized_model_equals_the_reference(backend: CpuBackend) -> None:
    rng = np.random.default_rng(2)
    batch = all_sampled(batch_of(rng, [5, 100, 17], [5, 100, 17], num_pages=200))
    results = []
    for b in (backend, ReferenceBackend()):
        program = b.capture(forward_of(TinyModel(b, "f32"), kv_of(b, "f32")), LIMITS)
        results.append(program.replay(batch).copy())
    np.testing.assert_allclose(results[0], results[1], rtol=2e-4, atol=2e-4)


@given(st.integers(0, 2**32), st.sampled_from(list(BY_NAME)), st.sampled_from(["u4-min", "s8", "f16"]))
@settings(max_examples=60, deadline=None)
def test_a_sequence_has_its_own_bits(seed: int, name: str, kind: str) -> None:
    """Alone and whole on one thread, against random chunks among random others."""
    rng = np.random.default_rng(seed)
    backend = BY_NAME[name]
    dtype = ["f16", "f32", "int8", "bf16", "int16"][seed % 5]
    length = int(rng.integers(2, 90))
    ids = rng.integers(0, VOCAB, length).astype(np.int32)

    single = BY_NAME[f"{backend.isa}-1"]
    alone = single.capture(forward_of(TinyModel(single, kind), kv_of(single, dtype)), LIMITS)
    batch = all_sampled(batch_of(rng, [length], [length], num_pages=200))
    want = alone.replay(replace(batch, token_ids=ids)).copy()

    program = backend.capture(forward_of(TinyModel(backend, kind), kv_of(backend, dtype)), LIMITS)
    tables = rng.permutation(200)[:80].reshape(8, 10).astype(np.int32)
    got, done = [], 0
    while done < length:
        count = min(int(rng.integers(1, 40)), length - done)
        others = int(rng.integers(0, 8))
        lengths = [int(n) for n in rng.integers(1, 30, others)]
        where = int(rng.integers(0, others + 1))
        contexts = [*lengths[:where], done + count, *lengths[where:]]
        queries = [*lengths[:where], count, *lengths[where:]]
        rows = [*range(1, 1 + where), 0, *range(1 + where, 1 + others)]
        batch = all_sampled(batch_on(rng, tables[rows], contexts, queries, 16))
        first = int(batch.query_start[where])
        batch.token_ids[first : first + count] = ids[done : done + count]
        got.append(program.replay(batch)[first : first + count].copy())
        done += count
    np.testing.assert_array_equal(np.concatenate(got), want)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: f"{b.isa}-{b.threads}")
def test_empty_batches(backend: CpuBackend) -> None:
    program = backend.capture(forward_of(TinyModel(backend, "u4"), kv_of(backend)), LIMITS)
    rng = np.random.default_rng(3)
    assert program.replay(batch_on(rng, np.zeros((0, 1), np.int32), [], [], 16)).shape == (0, VOCAB)
    unsampled = replace(batch_of(rng, [4], [4]), sampled=np.zeros(0, np.int32))
    assert program.replay(unsampled).shape == (0, VOCAB)


@given(
    st.integers(0, 2**32),
    st.sampled_from(list(BY_NAME)),
    st.sampled_from(["f16", "int16", "int8"]),
    st.sampled_from([0, 40]),
    st.lists(st.tuples(st.integers(0, 290), st.integers(1, 90)), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_attention_of_rows_that_are_gathered_has_the_bits_of_all(
    seed: int, name: str, dtype: str, window: int, lengths: list[tuple[int, int]], share: float
) -> None:
    """Whatever is sampled, in whatever order, nothing too; pages hold what went before."""
    backend, rng = BY_NAME[name], np.random.default_rng(seed)
    model, spec = TinyModel(backend, "u4"), replace(SPEC, window=window or None)
    contexts = [before + count for before, count in lengths]
    batch = batch_of(rng, contexts, [count for _, count in lengths], num_pages=200)
    earlier = [
        batch_on(rng, batch.page_tables[[s]], [before], [before], 16)
        for s, (before, _) in enumerate(lengths)
        if before
    ]
    picked = rng.permutation(np.flatnonzero(rng.random(batch.num_tokens) < share)).astype(np.int32)
    found = []
    for early in (False, True):
        kv = kv_of(backend, dtype)
        program = backend.capture(
            lambda ops, inputs, kv=kv, early=early: model.forward(ops, inputs, kv, spec, early), LIMITS
        )
        for each in earlier:
            program.replay(each)
        found.append(program.replay(replace(batch, sampled=picked) if early else all_sampled(batch)).copy())
    np.testing.assert_array_equal(found[1], found[0][picked])


def batches_out_of_bounds() -> Sequence[tuple[str, ForwardBatch]]:
    good = batch_of(np.random.default_rng(4), [20, 5], [3, 5])

    def changed(name: str, index: int | tuple[int, int], value: int) -> ForwardBatch:
        array = getattr(good, name).copy()
        array[index] = value
        return replace(good, **{name: array})

    return [
        ("vocabulary", changed("token_ids", 1, VOCAB)),
        ("vocabulary", changed("token_ids", 0, -1)),
        ("context", changed("positions", 0, 20)),
        ("context", changed("positions", 0, -1)),
        ("slot", changed("slots", 0, 200 * 16)),
        ("slot", changed("slots", 0, -1)),
        ("query_start", changed("query_start", 0, 1)),
        ("query_start", changed("query_start", 1, 9)),
        ("query_start", changed("query_start", 2, 7)),
        ("page table", changed("context_lens", 1, 33)),
        ("page", changed("page_tables", (0, 1), 200)),
        ("page", changed("page_tables", (0, 0), -1)),
        ("sampled", changed("sampled", 0, 8)),
        ("sampled", changed("sampled", 1, -1)),
        ("length", replace(good, slots=good.slots[:-1])),
        ("length", replace(good, context_lens=good.context_lens[:-1])),
    ]


@pytest.mark.parametrize(("what", "batch"), batches_out_of_bounds())
def test_bad_batches_are_refused(what: str, batch: ForwardBatch) -> None:
    backend = BACKENDS[0]
    program = backend.capture(forward_of(TinyModel(backend, "u4"), kv_of(backend)), LIMITS)
    with pytest.raises(ValueError, match=what):
        program.replay(batch)


def test_batches_beyond_the_limits_are_refused() -> None:
    backend = BACKENDS[0]
    limits = Limits(4, 1, 1, 2)
    program = backend.capture(forward_of(TinyModel(backend, "u4"), kv_of(backend)), limits)
    rng = np.random.default_rng(5)
    program.replay(batch_of(rng, [4], [4]))
    for contexts, queries in [([5], [5]), ([2, 2], [2, 2]), ([33], [1])]:
        with pytest.raises(CapacityError, match="exceeds"):
            program.replay(batch_of(rng, contexts, queries))


def test_rows_that_are_given_are_none_below_zero() -> None:
    backend = BACKENDS[0]
    program = backend.capture(forward_of(TinyModel(backend, "u4"), kv_of(backend)), LIMITS)
    with pytest.raises(ValueError, match="counted from 0"):
        program.native.replay(batch_of(np.random.default_rng(5), [4], [4]), -1)


@pytest.mark.parametrize("rows", [Rows.TOKENS, Rows.SAMPLED, Rows.GIVEN])
def test_memory_ends_with_the_rows_of_its_kind(rows: Rows) -> None:
    limits = Limits(8, 2, 5, 2, max_given=3)

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        return ops.add(ops.given(inputs, "x", rows, HIDDEN), ops.given(inputs, "y", rows, HIDDEN))

    program = BACKENDS[0].capture(forward, limits)
    place, most = program._given["x"], max_rows(rows, limits)
    assert program.native.memory(place, most).shape == (most, HIDDEN)
    for count in (most + 1, -1):
        with pytest.raises(ValueError, match="no memory for so many rows"):
            program.native.memory(place, count)


def test_bad_backends_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least 1"):
        CpuBackend(0)
    with pytest.raises(InvalidRequestError, match="generic"):
        CpuBackend(1, "mmx")


def test_more_threads_than_cores() -> None:
    batch = all_sampled(batch_of(np.random.default_rng(6), [40], [40], num_pages=200))
    results = []
    for threads in (1, 7):
        backend = CpuBackend(threads)
        program = backend.capture(forward_of(TinyModel(backend, "u4"), kv_of(backend)), LIMITS)
        results.append(program.replay(batch).copy())
    np.testing.assert_array_equal(*results)


def test_fusing_moves_a_norm_only_where_one_linear_reads_it() -> None:
    backend = BACKENDS[0]
    w = backend.pack([random_weight(np.random.default_rng(7), "f32", HIDDEN, HIDDEN)])
    gain = np.ones(HIDDEN, np.float32)

    def names(forward: Callable[[Ops, Tensor], Tensor]) -> list[str]:
        recorder = Recorder()
        result = forward(recorder, recorder.embed(Inputs(), w))
        return [c.name for c in fuse(recorder.calls, result.ref)][1:]

    assert names(lambda ops, x: ops.linear(ops.rms_norm(x, gain, 1e-5), w)) == ["linear"]

    def read_twice(ops: Ops, x: Tensor) -> Tensor:
        normed = ops.rms_norm(x, gain, 1e-5)
        return ops.add(ops.linear(normed, w), normed)

    assert names(read_twice) == ["rms_norm", "linear", "add"]

    def as_residual(ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(x, w, residual=ops.rms_norm(x, gain, 1e-5))

    assert names(as_residual) == ["rms_norm", "linear"]
    assert names(lambda ops, x: ops.rms_norm(x, gain, 1e-5)) == ["rms_norm"]


def test_attention_knows_whether_anyone_reads_its_other_rows() -> None:
    backend = BACKENDS[0]
    w = backend.pack([random_weight(np.random.default_rng(7), "f32", HIDDEN, HIDDEN)])
    layer = kv_of(backend).layer(0)

    def told(after: Callable[[Ops, Tensor], Tensor]) -> list[bool]:
        recorder = Recorder()
        q = recorder.embed(Inputs(), w)
        result = after(recorder, recorder.attention(Inputs(), q, layer, SPEC))
        kept = tuple(recorder.kept_as.values())
        calls = fuse(recorder.calls, result.ref, kept)
        return [call.args.get("sampled_only", False) for call in calls if call.name == "attention"]

    assert told(lambda ops, y: ops.gather_rows(Inputs(), y)) == [True]
    assert told(lambda ops, y: y) == [False]
    assert told(lambda ops, y: ops.linear(y, w)) == [False]
    assert told(lambda ops, y: ops.add(ops.gather_rows(Inputs(), y), ops.gather_rows(Inputs(), y))) == [True]

    def read_twice(ops: Ops, y: Tensor) -> Tensor:
        return ops.add(ops.gather_rows(Inputs(), y), ops.gather_rows(Inputs(), ops.linear(y, w)))

    def kept(ops: Ops, y: Tensor) -> Tensor:
        ops.keep(Inputs(), y, "y")
        return ops.gather_rows(Inputs(), y)

    assert told(read_twice) == [False]
    assert told(kept) == [False]


def test_recording_refuses_widths_that_do_not_meet() -> None:
    backend, recorder = BACKENDS[0], Recorder()
    w = backend.pack([random_weight(np.random.default_rng(7), "f32", 4, 6)])
    x = recorder.embed(Inputs(), w)
    narrow = recorder.given(Inputs(), "x", Rows.TOKENS, 3)
    with pytest.raises(ValueError, match="6 columns"):
        recorder.linear(narrow, w)
    with pytest.raises(ValueError, match="residual"):
        recorder.linear(x, w, residual=x)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5000)), min_size=1, max_size=60)
)
@settings(max_examples=200, deadline=None)
def test_buffers_alive_together_never_overlap(spec: list[tuple[int, int, int]]) -> None:
    calls, sizes = [], []
    for i, (a, b, size) in enumerate(spec):
        inputs = tuple({max(0, i - 1 - a), max(0, i - 1 - b)}) if i else ()
        calls.append(Call("op", inputs, i))
        sizes.append(size)
    spaces = [size // 3 for size in sizes]
    plan = plan_arena(calls, sizes, spaces, len(calls) - 1)
    last = {c.output: i for i, c in enumerate(calls)}
    for i, c in enumerate(calls):
        for b in c.inputs:
            last[b] = i
    last[len(calls) - 1] = len(calls)
    alive = [(plan.offsets[n], plan.offsets[n] + sizes[n], n, last[n]) for n in range(len(calls))]
    alive += [(plan.workspaces[i], plan.workspaces[i] + s, i, i) for i, s in enumerate(spaces) if s]
    for i, (low, high, born, dies) in enumerate(alive):
        assert high <= plan.nbytes
        assert low % 64 == 0
        for other_low, other_high, other_born, other_dies in alive[:i]:
            together = born <= other_dies and other_born <= dies
            assert not together or high <= other_low or other_high <= low


def test_captures_share_the_arena_over_time() -> None:
    """A deep forward needs no more memory than a shallow one: buffers are reused."""
    recorder = Recorder()
    backend = BACKENDS[0]
    w = backend.pack([random_weight(np.random.default_rng(9), "u4", HIDDEN, HIDDEN)])
    x = recorder.embed(Inputs(), w)
    for _ in range(50):
        x = recorder.add(x, x)
    sizes = [1000] * len(recorder.buffers)
    plan = plan_arena(recorder.calls, sizes, [0] * len(recorder.calls), x.ref)
    assert plan.nbytes == 2 * 1024


def test_results_are_views_that_the_next_replay_overwrites() -> None:
    backend = BACKENDS[0]
    program = backend.capture(forward_of(TinyModel(backend, "u4"), kv_of(backend)), LIMITS)
    rng = np.random.default_rng(10)
    first: F32 = program.replay(batch_of(rng, [9], [9]))
    kept = first.copy()
    program.replay(batch_of(rng, [9], [9]))
    assert (first != kept).any()
