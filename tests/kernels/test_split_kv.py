"""Layers with a window over sliding pages say what they say over pages shared with the others, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.kernels.cpu import CpuBackend, instruction_sets
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, AttentionSpec, Backend, Inputs, KVCache, KVSpec, Limits, Ops, Tensor
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.split_kv import SplitKVCache
from octavo.models.rotary import rotary_tables
from support.cuda import interpreted
from support.kernels import random_weight
from support.recordings import Recordings

PAGE, WINDOW, LENGTH, DIM = 4, 9, 41, 16
SLIDING = (True, False, True)
SPECS = tuple(AttentionSpec(4, 2, DIM, DIM, 0.25, window=WINDOW if sliding else None) for sliding in SLIDING)
BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": ReferenceBackend,
    **{isa: lambda isa=isa: CpuBackend(2, isa) for isa in instruction_sets()},
    "cuda": interpreted,
}
Steps = list[tuple[int, int]]
CHUNKS: Steps = [(0, 17), (17, 5), *((at, 1) for at in range(22, LENGTH))]


class Model:
    """An embedding, attention layer after layer, and a head."""

    def __init__(self, backend: Backend) -> None:
        rng = np.random.default_rng(3)

        def weight(n: int, k: int) -> Any:
            return backend.pack([random_weight(rng, "f32", n, k)])

        self.table, self.head = weight(50, 32), weight(50, 64)
        self.qkv = [weight(64 + 32 + 32, 32 if i == 0 else 64) for i in range(len(SLIDING))]
        self.rotary = rotary_tables(DIM, 10000.0, 64)

    def forward(self, ops: Ops, inputs: Inputs, kv: KVCache) -> Tensor:
        x = ops.embed(inputs, self.table)
        for i, spec in enumerate(SPECS):
            q = ops.rotary_append(inputs, ops.linear(x, self.qkv[i]), kv.layer(i), spec, self.rotary)
            x = ops.attention(inputs, q, kv.layer(i), spec)
        return ops.linear(ops.gather_rows(inputs, x), self.head)


def specs(dtype: str) -> list[KVSpec]:
    return [KVSpec(2, DIM, DIM, dtype, window=spec.window) for spec in SPECS]


def batch_at(start: int, count: int, tables: list[Any]) -> ForwardBatch:
    """Two sequences of the same tokens, that the kernels may cut as they like."""
    positions = np.tile(np.arange(start, start + count, dtype=np.int32), 2)
    tokens = np.random.default_rng(5).integers(0, 50, 2 * LENGTH).astype(np.int32).reshape(2, LENGTH)

    def slots(table: Any) -> Any:
        return (table[np.repeat([0, 1], count), positions // PAGE] * PAGE + positions % PAGE).astype(np.int32)

    whole, sliding = tables
    return ForwardBatch(
        token_ids=tokens[:, start : start + count].reshape(-1).copy(),
        positions=positions,
        slots=slots(whole),
        query_start=np.array([0, count, 2 * count], np.int32),
        context_lens=np.full(2, start + count, np.int32),
        page_tables=whole,
        sampled=np.arange(2 * count, dtype=np.int32),
        sliding_slots=slots(sliding),
        sliding_tables=sliding,
    )


def logits(backend: Backend, kv: KVCache, split: bool, early: int = 0) -> F32:
    """Of every token, chunk by chunk; sliding pages are used again when the window has passed them.

    Args:
        early: pages that are given away too early.
    """
    pages = -(-LENGTH // PAGE)
    whole = np.random.default_rng(1).permutation(2 * pages).astype(np.int32).reshape(2, pages)
    limits = Limits(64, 2, 64, pages, sliding=split)
    model = Model(backend)
    program = backend.capture(lambda ops, inputs: model.forward(ops, inputs, kv), limits)
    spare = kv.spare if isinstance(kv, SplitKVCache) else 0
    sliding = np.full((2, pages), spare, np.int32)
    free, rows = list(range(spare)), []
    for start, count in CHUNKS:
        first, end = max(start - WINDOW + 1, 0) // PAGE + early, -(-(start + count) // PAGE)
        for s in range(2) if split else ():
            behind = np.flatnonzero(sliding[s, : min(first, end - 1)] != spare)
            free += sliding[s, behind].tolist()
            sliding[s, behind] = spare
            for page in range(end):
                if page >= first and sliding[s, page] == spare:
                    sliding[s, page] = free.pop(0)
        batch = batch_at(start, count, [whole, sliding])
        if not split:
            batch = replace(batch, sliding_slots=None, sliding_tables=None)
        rows.append(program.replay(batch).reshape(2, count, -1).copy())
    return np.concatenate(rows, axis=1)


DTYPES = {"cuda": ("f32", "int8")}  # f16 is what recorded steps are tested with
MINUTES = {"cuda": pytest.mark.slow}  # interpreted


@pytest.mark.parametrize("name", [pytest.param(name, marks=MINUTES.get(name, ())) for name in BACKENDS])
def test_bits_are_those_of_one_memory(name: str) -> None:
    backend = BACKENDS[name]()
    for dtype in DTYPES.get(name, ("f32", "f16", "bf16", "int8", "int16")):
        one = backend.kv_cache(specs(dtype), 2 * -(-LENGTH // PAGE), PAGE)
        # A chunk of 17 tokens needs 5 pages of each sequence: of 11.
        two = SplitKVCache(backend, specs(dtype), 2 * -(-LENGTH // PAGE), 14, PAGE)
        assert two.nbytes < one.nbytes
        wanted = logits(backend, one, split=False)
        assert np.isfinite(wanted).all()
        assert (logits(backend, two, split=True) == wanted).all(), dtype


def test_recorded_steps_read_their_sliding_pages() -> None:
    """Decode steps of a GPU are graphs over arrays at fixed addresses, sliding tables among them."""
    backend = interpreted()
    from octavo.kernels.cuda.capture import Captures
    from octavo.kernels.cuda.graph_program import GraphProgram

    record = Recordings()

    class Recorded:
        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        def capture(self, forward: Any, limits: Limits) -> Any:
            return GraphProgram(backend.maker, forward, limits, Captures(record, background=False), PAGE)

    recorded: Any = Recorded()
    one = backend.kv_cache(specs("f16"), 22, PAGE)
    two = SplitKVCache(backend, specs("f16"), 22, 14, PAGE)
    wanted = logits(recorded, one, split=False)
    assert (logits(recorded, two, split=True) == wanted).all()
    assert record.made == 2


def test_a_page_given_away_too_early_is_seen() -> None:
    backend = CpuBackend(1)
    one = backend.kv_cache(specs("f32"), 22, PAGE)
    two = SplitKVCache(backend, specs("f32"), 22, 14, PAGE)
    wanted = logits(backend, one, split=False)
    assert not (logits(backend, two, split=True, early=1) == wanted).all()


@pytest.mark.parametrize("name", BACKENDS)
def test_a_batch_without_sliding_pages_is_refused(name: str) -> None:
    backend = BACKENDS[name]()
    kv = SplitKVCache(backend, specs("f32"), 22, 14, PAGE)
    with pytest.raises(ValueError, match="the batch lacks the pages of layers with a window"):
        logits(backend, kv, split=False)


def test_a_slot_outside_the_sliding_pages_is_refused() -> None:
    backend = CpuBackend(1)
    kv = SplitKVCache(backend, specs("f32"), 22, 4, PAGE)
    model = Model(backend)
    program = backend.capture(lambda ops, inputs: model.forward(ops, inputs, kv), Limits(8, 2, 8, 2, True))
    tables = [np.array([[0, 1], [2, 3]], np.int32), np.array([[0, 1], [2, 5]], np.int32)]
    with pytest.raises(ValueError, match="a slot lies outside the KV cache"):
        program.replay(batch_at(4, 1, tables))
    tables[1][:] = [[5, 1], [2, 3]]
    with pytest.raises(ValueError, match="a page lies outside the KV cache"):
        program.replay(batch_at(4, 1, tables))


def test_swapped_pages_have_places_of_their_own() -> None:
    backend = ReferenceBackend()
    kv = SplitKVCache(backend, specs("f32"), 6, 3, PAGE, swap_pages=2)
    assert (kv.spare, kv.first_swap) == (3, 4)
    whole, sliding = kv.whole, kv.sliding
    assert kv.nbytes == whole.nbytes + sliding.nbytes == 4 * PAGE * DIM * 2 * 2 * (8 * 1 + 6 * 2)
