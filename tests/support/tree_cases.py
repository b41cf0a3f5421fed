"""Trees of random tokens after random contexts, and what each token must see: its path alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, AttentionSpec, KVSpec, Ops, Rotary, Tensor
from octavo.kernels.trees import masks_of
from support.cuda import Apply, Inputs, by_reference
from support.kernels import batch_on, normal

Parents = Sequence[int] | None
"""Of one sequence's step; None: a plain chunk of three tokens."""


def random_parents(rng: np.random.Generator, count: int) -> list[int]:
    """Any forest: chains, bushes, several roots."""
    return [int(rng.integers(max(-1, t - 4), t)) for t in range(count)]


class TreeCase:
    """Sequence s has lengths[s] tokens before its step, which is trees[s].

    Attributes:
        first, step: the batch of the contexts and the batch of the trees, with their qkv rows.
    """

    def __init__(
        self,
        seed: int,
        lengths: Sequence[int],
        trees: Sequence[Parents],
        spec: AttentionSpec,
        page: int = 16,
        dtype: str = "f32",
        rotary: Rotary | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.spec, self.page, self.rotary, self.lengths = spec, page, rotary, list(lengths)
        self.kv = KVSpec(spec.num_kv_heads, spec.head_dim, spec.v_head_dim, dtype)
        self.counts = [3 if t is None else len(t) for t in trees]
        self.paths = [_paths(t, n) for t, n in zip(trees, self.counts, strict=True)]
        ends = [c + n for c, n in zip(lengths, self.counts, strict=True)]
        width = max(-(-n // page) for n in ends)
        self.num_pages = width * len(ends) + 1
        pages = rng.permutation(self.num_pages)[: width * len(ends)]
        self.tables = pages.reshape(-1, width).astype(np.int32)
        columns = (spec.num_heads + spec.num_kv_heads) * spec.head_dim + spec.num_kv_heads * spec.v_head_dim
        self.before = [normal(rng, n, columns) for n in lengths]
        self.after = [normal(rng, n, columns) for n in self.counts]
        begun = [s for s, n in enumerate(lengths) if n]
        known = [lengths[s] for s in begun]
        first = batch_on(rng, self.tables[begun], known, known, page)
        self.first = first, np.concatenate(self.before)
        chain = batch_on(rng, self.tables, ends, self.counts, page)
        words = max(-(-n // 64) for n in self.counts)
        masks = [
            np.zeros((n, words), np.uint64) if t is None else masks_of(t, words)
            for t, n in zip(trees, self.counts, strict=True)
        ]
        at = [c + len(p) - 1 for c, ps in zip(lengths, self.paths, strict=True) for p in ps]
        self.step = _with(chain, np.array(at, np.int32), np.concatenate(masks)), np.concatenate(self.after)

    def apply(self, layer: Any) -> Apply:
        def case(ops: Ops, inputs: Inputs, t: list[Tensor]) -> Tensor:
            q = ops.rotary_append(inputs, t[0], layer, self.spec, self.rotary)
            return ops.attention(inputs, q, layer, self.spec)

        return case

    def run(self, backend: Any, run: Any = None) -> F32:
        """The trees' outputs [T, heads * v_head_dim]; run: support.cuda.run, or None for the reference."""
        layer = backend.kv_cache([self.kv], self.num_pages, self.page).layer(0)
        for batch, qkv in (self.first, self.step) if any(self.lengths) else (self.step,):
            if run is None:
                y = by_reference(batch, self.apply(layer), qkv)
            else:
                y = run(backend, batch, self.apply(layer), qkv)
        return np.array(y)

    def alone(self, backend: Any, run: Any = None) -> F32:
        """The same, each token as the last of a plain sequence: its context, then its path."""
        rng, rows = np.random.default_rng(0), []
        for s, paths in enumerate(self.paths):
            for path in paths:
                layer = backend.kv_cache([self.kv], self.num_pages, self.page).layer(0)
                qkv = np.concatenate([self.before[s], self.after[s][path]])
                batch = batch_on(rng, self.tables[s : s + 1], [len(qkv)], [len(qkv)], self.page)
                if run is None:
                    y = by_reference(batch, self.apply(layer), qkv)
                else:
                    y = run(backend, batch, self.apply(layer), qkv)
                rows.append(y[-1])
        return np.array(rows)


def _paths(parents: Parents, count: int) -> list[list[int]]:
    if parents is None:
        return [list(range(t + 1)) for t in range(count)]
    paths: list[list[int]] = []
    for token, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


def _with(batch: ForwardBatch, positions: Any, masks: Any) -> ForwardBatch:
    """batch with other positions; its slots stay."""
    return ForwardBatch(
        batch.token_ids, positions, batch.slots, batch.query_start, batch.context_lens,
        batch.page_tables, batch.sampled, tree_masks=masks,
    )  # fmt: skip
