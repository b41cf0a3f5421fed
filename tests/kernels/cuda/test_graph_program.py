"""Buckets and padding of recorded decode steps; the recording itself is played by a stand-in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.errors import CapacityError
from octavo.kernels.ops import F32, Inputs, KVSpec, Limits, Ops, Tensor
from support.cuda import interpreted
from support.kernels import batch_of, random_weight
from support.recordings import Recordings


def program_module() -> Any:
    interpreted()
    from octavo.kernels.cuda import graph_program

    return graph_program


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 64, 65, 256, 300, 1000])
def test_buckets(most: int) -> None:
    """Ascending, none too large, none that wastes half of itself."""
    program_module()
    from octavo.kernels.cuda import buckets

    sizes = buckets.buckets(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        size = buckets.bucket_of(sizes, rows)
        assert rows <= size <= max(2 * rows, rows + 8)


def same(ours: F32, theirs: F32) -> None:
    """Tiles of another number of rows: the same sums, in another order."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * max(np.abs(theirs).max(), 1))


def test_a_padded_step_equals_an_eager_one() -> None:
    """Rows of padding change nothing, in pages or in logits; each bucket is recorded once."""
    from octavo.kernels.cuda.capture import Captures

    program, backend, rng = program_module(), interpreted(), np.random.default_rng(0)
    table = backend.pack([random_weight(rng, "f32", 50, 64)])
    spec_of = KVSpec(1, 16, 16, "f32")
    from octavo.kernels.ops import AttentionSpec

    spec = AttentionSpec(2, 1, 16, 16, 0.25)
    qkv, head = (backend.pack([random_weight(rng, "f32", n, k)]) for n, k in ((64, 64), (50, 32)))
    caches = [backend.kv_cache([spec_of], 12, 16) for _ in range(2)]

    def forward_on(cache: Any) -> Any:
        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            x = ops.linear(ops.embed(inputs, table), qkv)
            q = ops.rotary_append(inputs, x, cache.layer(0), spec, None)
            return ops.logits(ops.gather_rows(inputs, ops.attention(inputs, q, cache.layer(0), spec)), head)

        return forward

    limits, record = Limits(64, 6, 6, 4), Recordings()
    captures = Captures(record, background=False)
    graphs = program.GraphProgram(backend.maker, forward_on(caches[0]), limits, captures)
    eager = program.GraphProgram(backend.maker, forward_on(caches[1]), limits, None)
    for rows, made, replays in ((3, 1, 0), (3, 1, 1), (2, 2, 1), (4, 2, 2), (6, 3, 2), (5, 3, 3)):
        lengths = rng.integers(1, 17, rows).tolist()
        batch = batch_of(np.random.default_rng(rows), lengths, [1] * rows, num_pages=12)
        same(graphs.replay(batch), eager.replay(batch))
        assert (record.made, graphs.replays) == (made, replays)
        for mine, its in zip(caches[0].tensors, caches[1].tensors, strict=True):
            same(mine.numpy(), its.numpy())
    prompt = batch_of(rng, [9, 5], [9, 1], num_pages=12)
    same(graphs.replay(prompt), eager.replay(prompt))
    assert record.made == 3
    with pytest.raises(CapacityError):
        graphs.replay(batch_of(rng, [1] * 7, [1] * 7, num_pages=12))


def test_stale_rows_of_a_bucket_are_nobodys() -> None:
    program_module()
    from octavo.kernels.cuda.buckets import Form, pad, shapes

    rng, limits = np.random.default_rng(1), Limits(8, 8, 8, 4)
    form = Form(8, 8)
    host = {name: np.full(shape, 7, np.int32) for name, shape in shapes(form, limits).items()}
    batch = batch_of(rng, [20, 3, 40], [1, 1, 1])
    pad(batch, host, form)
    assert host["slots"].tolist() == [*batch.slots, -1, -1, -1, -1, -1]
    assert host["context_lens"].tolist() == [20, 3, 40, 0, 0, 0, 0, 0]
    assert host["query_start"].tolist() == list(range(9))
    assert (host["page_tables"][:3, : batch.page_tables.shape[1]] == batch.page_tables).all()


def test_a_bucket_holds_sliding_pages_beside_the_others() -> None:
    program_module()
    from octavo.kernels.cuda.buckets import Bucket, Form, pad, shapes

    rng, limits, form = np.random.default_rng(1), Limits(8, 8, 8, 4, sliding=True), Form(8, 8)
    host = {name: np.full(shape, 7, np.int32) for name, shape in shapes(form, limits).items()}
    batch = batch_of(rng, [20, 3, 40], [1, 1, 1])
    batch = replace(batch, sliding_slots=batch.slots + 1, sliding_tables=batch.page_tables + 1)
    pad(batch, host, form)
    assert host["sliding_slots"].tolist() == [*(batch.slots + 1), -1, -1, -1, -1, -1]
    assert (host["sliding_tables"][:3, : batch.page_tables.shape[1]] == batch.page_tables + 1).all()
    pad(None, host, form)
    assert host["sliding_slots"].tolist() == [-1] * 8
    bucket = Bucket(form, limits, 16, interpreted().device)
    bucket.write(batch)
    for queries, slots, tables in (
        (bucket.batch.of(False), batch.slots, batch.page_tables),
        (bucket.batch.of(True), batch.slots + 1, batch.page_tables + 1),
    ):
        assert queries.slots.tolist()[:3] == slots.tolist()
        assert (queries.page_tables[:3, : tables.shape[1]].numpy() == tables).all()
