"""Run a loaded model without an engine: prompts in any chunking, side by side, and a greedy loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from octavo.checkpoints import open_checkpoint
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Backend, Limits, Program
from octavo.kernels.reference import ReferenceBackend
from octavo.kernels.select import native_available
from octavo.models.load import load_model
from octavo.models.registry import EncoderDecoder, Model

SOURCE = [int(i) for i in np.random.default_rng(8).integers(3, 150, 45)]
"""What an encoder reads where a test says nothing else."""


BACKENDS = ("reference", "cpu") if native_available() else ("reference",)


@cache
def backend_called(name: str) -> Backend:
    """One of BACKENDS, the same each time."""
    if name == "reference":
        return ReferenceBackend()
    from octavo.kernels.cpu import CpuBackend

    return CpuBackend(threads=2)


def load(path: Path, backend: Backend, dtype: str = "float32", context: int | None = None) -> Model:
    return load_model(open_checkpoint(path), backend, dtype, context=context)[0]


class Sequences:
    """Several sequences over one set of pages, whose tokens are computed when asked for.

    Args:
        lengths: the most tokens that each will hold; their pages are handed out at random.
        sources: what each one's encoder reads, for a model that has one; by default SOURCE.
        together: the sources are encoded in one batch.

    Attributes:
        encoded: the encoder's outputs [len, hidden].
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        lengths: Sequence[int],
        page_size: int = 16,
        kv: str = "f32",
        sources: Sequence[Sequence[int]] | None = None,
        together: bool = True,
    ) -> None:
        if not isinstance(model, EncoderDecoder):
            sources = []
        elif sources is None:
            sources = [SOURCE] * len(lengths)
        self._sources = [len(source) for source in sources]
        counts = [-(-length // page_size) for length in (*lengths, *self._sources)]
        self._page_size, self.computed = page_size, [0] * len(counts)
        pages = np.random.default_rng(0).permutation(sum(counts) + 3).astype(np.int32)
        self._tables = np.zeros((len(counts), max(counts)), np.int32)
        for s, count in enumerate(counts):
            self._tables[s, :count] = pages[sum(counts[:s]) :][:count]
        cache = backend.kv_cache(model.kv_specs(kv), len(pages), page_size)
        tokens = max(sum(lengths), sum(self._sources))
        limits = Limits(tokens, len(counts), tokens, max(counts))
        self._program = backend.capture(lambda ops, inputs: model.forward(ops, inputs, cache), limits)
        self.encoded: list[F32] = []
        if isinstance(model, EncoderDecoder):
            encode = model.encode
            program = backend.capture(lambda ops, inputs: encode(ops, inputs, cache), limits)
            every = {len(lengths) + s: source for s, source in enumerate(sources)}
            for part in [every] if together else [{s: source} for s, source in every.items()]:
                self.encoded += list(self._run(program, part).values())

    def logits(self, tokens: dict[int, Sequence[int]]) -> dict[int, F32]:
        """Compute each sequence's next tokens; [len, vocab] of each."""
        return self._run(self._program, tokens)

    def _run(self, program: Program, tokens: Mapping[int, Sequence[int]]) -> dict[int, F32]:
        order = sorted(tokens)
        spans = [
            np.arange(self.computed[s], self.computed[s] + len(tokens[s]), dtype=np.int32) for s in order
        ]
        size = self._page_size
        slots = [self._tables[s][at // size] * size + at % size for s, at in zip(order, spans, strict=True)]
        for s in order:
            self.computed[s] += len(tokens[s])
        ends = np.cumsum([len(at) for at in spans])
        batch = ForwardBatch(
            token_ids=np.concatenate([tokens[s] for s in order]).astype(np.int32),
            positions=np.concatenate(spans),
            slots=np.concatenate(slots).astype(np.int32),
            query_start=np.array([0, *ends], np.int32),
            context_lens=np.array([self.computed[s] for s in order], np.int32),
            page_tables=np.ascontiguousarray(self._tables[order]),
            sampled=np.arange(ends[-1], dtype=np.int32),
        )
        if self._sources and program is self._program:
            batch = replace(
                batch,
                cross_lens=np.array([self._sources[s] for s in order], np.int32),
                cross_tables=np.ascontiguousarray(self._tables[-len(self._sources) :][order]),
            )
        out = program.replay(batch).copy()
        return dict(zip(order, np.split(out, ends[:-1]), strict=True))


def logits(
    model: Model, backend: Backend, ids: Sequence[int], chunks: Sequence[int], page_size: int = 16
) -> F32:
    """[len(ids), vocab]: every position's logits, the prompt computed in these chunk lengths."""
    assert sum(chunks) == len(ids)
    sequence = Sequences(model, backend, [len(ids)], page_size)
    ends = np.cumsum(chunks)
    return np.concatenate(
        [sequence.logits({0: ids[e - n : e]})[0] for e, n in zip(ends, chunks, strict=True)]
    )


def greedy(model: Model, backend: Backend, ids: Sequence[int], count: int) -> tuple[list[int], F32]:
    """count tokens after ids, each the likeliest, and the logits [count, vocab] they were taken from."""
    sequence = Sequences(model, backend, [len(ids) + count])
    out, rows, given = list[int](), list[F32](), ids
    while len(out) < count:
        rows.append(sequence.logits({0: given})[0][-1])
        out.append(int(rows[-1].argmax()))
        given = out[-1:]
    return out, np.array(rows)
