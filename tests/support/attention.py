"""Paged attention beside the reference: sequences of random rows on random pages, cut as asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.kernels.cpu import CpuBackend, CpuKVCache
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, AttentionSpec, Inputs, KVSpec, Limits, Rows, Tensor
from octavo.kernels.program import Buffer
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.reference_kv import ReferenceKVCache
from support.kernels import batch_on, limits_of, normal

REFERENCE = ReferenceBackend()
QUERY_NORM = {"int8": 500_000, "int16": 46_000}
Tables = np.ndarray[tuple[int, int], np.dtype[np.int32]]


def page_tables(rng: np.random.Generator, context_lens: Sequence[int], page_size: int) -> tuple[Tables, int]:
    """Distinct pages in random order, and how many there are in all (some belong to nobody)."""
    width = max(-(-c // page_size) for c in context_lens)
    total = width * len(context_lens) + 2
    return rng.permutation(total)[: width * len(context_lens)].reshape(-1, width).astype(np.int32), total


def native(
    backend: CpuBackend, cache: CpuKVCache, batch: ForwardBatch, qkv: F32, spec: AttentionSpec, limits: Limits
) -> F32:
    """Append and attend, as one captured program reading its rows from an embedding table."""
    ops = backend.eager(batch, limits)
    layer = cache.layer(0)
    q = ops.rotary_append(Inputs(), ops.tensor(qkv, Buffer(Rows.TOKENS, qkv.shape[1])), layer, spec, None)
    return ops.value(ops.attention(Inputs(), q, layer, spec))


def round_queries(q: F32, dtype: str) -> F32:
    """q [..., dim] as the native kernels take it to integer pages (csrc/isa/round16.inl); else q itself."""
    if dtype not in QUERY_NORM:
        return q
    largest = np.maximum(np.abs(q).max(axis=-1, keepdims=True), np.float32(1e-30))
    norm = largest * np.linalg.norm(q / largest, axis=-1, keepdims=True)
    unit = np.maximum(largest / 32767, norm / QUERY_NORM[dtype])
    return np.asarray(np.rint(q / unit) * unit, np.float32)


def reference(
    cache: ReferenceKVCache, batch: ForwardBatch, qkv: F32, spec: AttentionSpec, dtype: str = "f32"
) -> F32:
    ops, inputs, layer = REFERENCE.ops, Inputs(batch), cache.layer(0)
    q = ops.rotary_append(inputs, Tensor(Rows.TOKENS, qkv.shape[1], qkv), layer, spec, None)
    rows = q.ref.reshape(len(qkv), spec.num_heads, spec.head_dim)
    q = Tensor(q.rows, q.width, round_queries(rows, dtype).reshape(q.ref.shape))
    result: F32 = ops.attention(inputs, q, layer, spec).ref
    return result


class Case:
    """Sequences of random qkv rows on shared random pages."""

    rounds_queries = True  # the backend does, where pages are integers

    def __init__(
        self, seed: int, context_lens: Sequence[int], spec: AttentionSpec, page_size: int, dtype: str
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.spec, self.page_size, self.context_lens = spec, page_size, list(context_lens)
        self.kv = KVSpec(spec.num_kv_heads, spec.head_dim, spec.v_head_dim, dtype)
        self.tables, self.num_pages = page_tables(self.rng, context_lens, page_size)
        width = (spec.num_heads + spec.num_kv_heads) * spec.head_dim + spec.num_kv_heads * spec.v_head_dim
        self.qkv = [normal(self.rng, length, width) for length in context_lens]

    def steps(self, cuts: Sequence[Sequence[int]]) -> list[tuple[list[int], ForwardBatch, F32]]:
        """cuts[s]: lengths of sequence s's chunks. Step i runs the i-th chunk of each that has one."""
        result, done = [], [0] * len(cuts)
        for i in range(max(len(c) for c in cuts)):
            who = [s for s, c in enumerate(cuts) if i < len(c)]
            counts = [cuts[s][i] for s in who]
            rows = [self.qkv[s][done[s] : done[s] + n] for s, n in zip(who, counts, strict=True)]
            for s, n in zip(who, counts, strict=True):
                done[s] += n
            batch = batch_on(self.rng, self.tables[who], [done[s] for s in who], counts, self.page_size)
            result.append((who, batch, np.concatenate(rows)))
        return result

    def compute(self, backend: Any, cache: Any, batch: ForwardBatch, qkv: F32) -> F32:
        """One step on a backend; natively, unless a kind of cases says otherwise."""
        return native(backend, cache, batch, qkv, self.spec, limits_of(batch))

    def run(self, backend: Any, cuts: Sequence[Sequence[int]]) -> list[F32]:
        """Outputs of each sequence, all its tokens."""
        cache = backend.kv_cache([self.kv], self.num_pages, self.page_size)
        out: list[list[F32]] = [[] for _ in cuts]
        for who, batch, qkv in self.steps(cuts):
            y = self.compute(backend, cache, batch, qkv)
            for i, s in enumerate(who):
                out[s].append(y[batch.query_start[i] : batch.query_start[i + 1]])
        return [np.concatenate(parts) for parts in out]

    def truth(self) -> list[F32]:
        cache = REFERENCE.kv_cache([self.kv], self.num_pages, self.page_size)
        ((_, batch, qkv),) = self.steps([[n] for n in self.context_lens])
        y = reference(cache, batch, qkv, self.spec, self.kv.dtype if self.rounds_queries else "f32")
        return [y[a:b] for a, b in zip(batch.query_start[:-1], batch.query_start[1:], strict=True)]


def specs(heads: int, kv_heads: int, d: int, dv: int) -> list[AttentionSpec]:
    base = (heads, kv_heads, d, dv, d**-0.5)
    slopes = np.linspace(0.02, 0.3, heads).astype(np.float32)
    sinks = np.linspace(-2, 3, heads).astype(np.float32)
    return [
        AttentionSpec(*base),
        AttentionSpec(*base, window=5),
        AttentionSpec(*base, window=40, softcap=3.0),
        AttentionSpec(*base, alibi_slopes=slopes),
        AttentionSpec(*base, sinks=sinks),
        AttentionSpec(*base, window=300, softcap=20.0, alibi_slopes=slopes, sinks=sinks),
    ]
