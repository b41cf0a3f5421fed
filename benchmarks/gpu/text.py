"""A real model's greedy text on the device against NumPy's, given its file: SmolLM2's, whole or in pieces."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from octavo.checkpoints import open_checkpoint
from octavo.kernels.cuda import make
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Backend, Inputs, Limits, Ops, Tensor
from octavo.kernels.reference import ReferenceBackend
from octavo.models.load import load_model

PROMPTS = ((504, 2365, 282, 4649, 314), (3725, 253, 655, 284, 253, 1838), (788, 351, 260, 1129))
"""Ids of any vocabulary of some thousands."""
PAGE = 16
TIE = 1e-3
"""Logits that are closer are a tie: which of them wins is rounding."""


@contextmanager
def whole(pieces: Sequence[Path]) -> Iterator[Path]:
    """One file of its pieces, in the order given; a single one is it."""
    if len(pieces) == 1:
        yield pieces[0]
        return
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.gguf"
        with target.open("wb") as out:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, out)
        yield target


class Greedy:
    """A model of a file on a backend, everything in f32: sequences that grow token by token."""

    def __init__(self, path: Path, backend: Backend, dtype: str, length: int) -> None:
        self.model, _ = load_model(open_checkpoint(path), backend, dtype)
        self._width = -(-length // PAGE)
        count = len(PROMPTS)
        kv = backend.kv_cache(self.model.kv_specs("f32"), count * self._width, PAGE)

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            return self.model.forward(ops, inputs, kv)

        self._program = backend.capture(forward, Limits(64, count, count, self._width))
        self._lengths = np.zeros(count, np.int32)

    def step(self, tokens: Sequence[Sequence[int]]) -> F32:
        """Logits after the next tokens of each sequence."""
        counts = np.array([len(t) for t in tokens], np.int32)
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        positions = np.concatenate([n + np.arange(c) for n, c in zip(self._lengths, counts, strict=True)])
        tables = np.arange(len(tokens) * self._width, dtype=np.int32).reshape(len(tokens), -1)
        owners = np.repeat(np.arange(len(tokens)), counts)
        slots = tables[owners, positions // PAGE] * PAGE + positions % PAGE
        self._lengths = self._lengths + counts
        ids: Any = np.concatenate([np.array(t) for t in tokens])
        batch = ForwardBatch(
            ids.astype(np.int32), positions.astype(np.int32), slots.astype(np.int32), start,
            self._lengths, tables, start[1:] - np.int32(1),
        )  # fmt: skip
        return np.array(self._program.replay(batch))


def text(device: str, pieces: Sequence[Path], steps: int = 32) -> Iterator[tuple[str, float, float]]:
    """First choices after each token of the text that NumPy writes: those that differ, ties apart."""
    with whole(pieces) as path:
        length = max(map(len, PROMPTS)) + steps + 1
        numpy = Greedy(path, ReferenceBackend(), "float32", length)
        ours = Greedy(path, make(device, dtype="float32"), "auto", length)
        tokens: Any = [[t % ours.model.vocab_size for t in prompt] for prompt in PROMPTS]
        different, furthest = 0, 0.0
        for _ in range(steps):
            want, got = numpy.step(tokens), ours.step(tokens)
            chosen, best = got.argmax(axis=1), want.argmax(axis=1)
            rows = np.arange(len(want))
            different += int((want[rows, best] - want[rows, chosen] > TIE).sum())
            furthest = max(furthest, float(np.abs(got - want).max() / np.abs(want).max()))
            tokens = [[int(t)] for t in best]
    name = f"{pieces[0].name}: {steps} greedy tokens of {len(PROMPTS)} prompts"
    yield f"{name}, first choices that differ from NumPy's", float(different), 0.0
    yield f"{name}, logits", furthest, 1e-3
