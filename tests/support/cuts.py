"""Programs that keep, are given, and are cut at a layer: the same forward in pieces, over any backend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from octavo.engine.step_plan import EncoderInput
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Backend, Inputs, KVCache, Limits, Ops, Program, Rows, Tensor
from octavo.models.layers import tap_name
from octavo.models.registry import EncoderDecoder
from octavo.runtime.simple_batches import encoder_batch
from support.forward import SOURCE

PAGE, PAGES = 16, 12
Chunks = Sequence[tuple[int, int]]
CHUNKS: Chunks = ((0, 21), (21, 22), (22, 29))
"""A prompt in a chunk, a decode step, another chunk."""
FEW: Chunks = ((0, 5), (5, 6))
"""For backends that are interpreted."""
IDS = np.random.default_rng(5).integers(3, 150, 29).astype(np.int32)


class Pieces:
    """A model over pages of its own; each of its methods computes IDS by chunks and gives all logits."""

    def __init__(self, model: Any, backend: Backend, chunks: Chunks = CHUNKS) -> None:
        self.model, self.stack, self._backend, self.chunks = model, model.stack, backend, chunks
        self.layers = len(self.stack.layers)
        self._source: tuple[int, ...] = tuple(SOURCE) if isinstance(model, EncoderDecoder) else ()
        most = max(len(IDS), len(self._source))
        self._limits = Limits(most, 1, most, PAGES)

    def whole(
        self, taps: Collection[int] = (), sampled: Collection[int] | None = None
    ) -> tuple[F32, dict[int, F32]]:
        """Logits, and each tap's rows. sampled: positions whose logits are wanted, in order; None: all."""
        kv = self.pages()
        program = self._backend.capture(
            lambda ops, inputs: self.model.forward(ops, inputs, kv, taps), self._limits
        )
        logits: list[F32] = []
        kept: dict[int, list[F32]] = {tap: [] for tap in taps}
        for batch in self.batches():
            if sampled is not None:
                rows = np.flatnonzero(np.isin(batch.positions, sorted(sampled)))
                batch = replace(batch, sampled=rows.astype(np.int32))
            logits.append(program.replay(batch).copy())
            for tap in taps:
                kept[tap].append(program.kept(tap_name(tap)).copy())
        return np.concatenate(logits), {tap: np.concatenate(rows) for tap, rows in kept.items()}

    def cut(self, count: int) -> F32:
        """Logits of the first count layers and, as another program, of the rest."""
        kv = self.pages()
        first, rest = self.halves(kv, count)
        logits = []
        for batch in self.batches():
            x = first.replay(batch).copy()
            logits.append(rest.replay(batch, {"x": x}).copy())
        return np.concatenate(logits)

    def halves(self, kv: KVCache, count: int) -> tuple[Program, Program]:
        stack = self.stack

        def rest(ops: Ops, inputs: Inputs) -> Tensor:
            x = ops.given(inputs, "x", Rows.TOKENS, stack.embedding.width)
            return stack.rest(ops, inputs, kv, count, x)

        first = self._backend.capture(lambda ops, inputs: stack.first(ops, inputs, kv, count), self._limits)
        return first, self._backend.capture(rest, self._limits)

    def pages(self) -> KVCache:
        """With the encoder's keys and values, where there is an encoder, in the last of them."""
        kv = self._backend.kv_cache(self.model.kv_specs("f32"), PAGES, PAGE)
        if self._source:
            program = self._backend.capture(
                lambda ops, inputs: self.model.encode(ops, inputs, kv), self._limits
            )
            program.replay(encoder_batch([self._encoder_input()], PAGE))
        return kv

    def _encoder_input(self) -> EncoderInput:
        pages = -(-len(self._source) // PAGE)
        return EncoderInput(self._source, tuple(range(PAGES - pages, PAGES)), True)

    def batches(self) -> list[ForwardBatch]:
        return [self._batch(begin, end) for begin, end in self.chunks]

    def _batch(self, begin: int, end: int) -> ForwardBatch:
        at = np.arange(begin, end, dtype=np.int32)
        cross = self._encoder_input() if self._source else None
        return ForwardBatch(
            token_ids=IDS[begin:end],
            positions=at,
            slots=at,
            query_start=np.array([0, len(at)], np.int32),
            context_lens=np.array([end], np.int32),
            page_tables=np.arange(2, dtype=np.int32)[None],
            sampled=np.arange(len(at), dtype=np.int32),
            cross_lens=None if cross is None else np.array([len(self._source)], np.int32),
            cross_tables=None if cross is None else np.array([cross.pages], np.int32),
        )


def check_cuts(model: Any, backend: Backend, chunks: Chunks = CHUNKS) -> None:
    """Logits with three taps, and of the forward cut after each number of layers, are the whole one's."""
    pieces = Pieces(model, backend, chunks)
    plain, _ = pieces.whole()
    last = pieces.layers - 1
    taps = {0, last // 2, last}
    tapped, kept = pieces.whole(taps)
    np.testing.assert_array_equal(tapped, plain)
    for tap, rows in kept.items():
        assert rows.shape == (chunks[-1][1], pieces.stack.embedding.width), tap
        assert np.isfinite(rows).all()
    for count in range(pieces.layers + 1):
        np.testing.assert_array_equal(pieces.cut(count), plain, err_msg=f"cut after {count} layers")


def check_sampled(model: Any, backend: Backend, chunks: Chunks = CHUNKS) -> None:
    """Logits of some rows alone, or of none, are those that they have among all; of a backend whose bits
    depend on no other row."""
    pieces = Pieces(model, backend, chunks)
    plain, _ = pieces.whole()
    for sampled in ([], [chunks[-1][1] - 1], [0, 2, chunks[0][1] - 1, chunks[1][0]]):
        for taps in ((), {pieces.layers - 1}):
            some, _ = pieces.whole(taps, sampled)
            np.testing.assert_array_equal(some, plain[sampled], err_msg=f"{sampled} alone, taps {taps}")
