"""Verify steps on the device: recorded as graphs, they say what the same steps say run one op at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu.drive import Driver, draws_with
from gpu.models import TINY, Model
from octavo.kernels.cuda import make
from octavo.kernels.draws import Draws
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.trees import masks_of

COUNT, PROMPT = 3, 21
TREES: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "chains": ((-1, 0, 1, 2, 3), (-1, 0, 1, 2, 3)),
    "trees": ((-1, 0, 0, 1, 1), (-1, 0, 1, 1, 3)),
}
"""Parents of a step's tokens: of the step that is recorded, and of the one that is replayed."""


def verify(device: str, dtype: str) -> Iterator[tuple[str, float, float]]:
    """Two steps of one form; the second is a replay. Greedy draws, and top-k with top-p."""
    for exact in (False, True):
        for what, (first, second) in TREES.items():
            for kind, draws in draws_of(COUNT * len(first)).items():
                backend = make(device, dtype=dtype, exact=exact)
                recorded, plain = started(backend), started(backend)
                run(recorded, first, draws, what == "trees", 1)
                recorded.warm()
                got = run(recorded, second, draws, what == "trees", 2)
                want = run(plain, second, draws, what == "trees", 2)
                label = f"verify {what}, {kind}, exact={exact}"
                yield f"{label}: tokens that differ", float((got != want).sum()), 0.0
                missing = backend.captures is not None and recorded.steps.replays != 1
                yield f"{label}: replays that are missing", float(missing), 0.0


def draws_of(rows: int) -> dict[str, Draws]:
    narrowed = draws_with(rows, temperature=1, seed=np.arange(rows), top_p=0.9, top_k=9)
    return {"greedy": draws_with(rows), "top-k, top-p": narrowed}


def started(backend: Any) -> Driver:
    """Sequences whose prompts are in their pages."""
    drive = Driver(Model(backend, TINY, "dense", pages=16 * COUNT), COUNT, 64 * 4, 256, 64)
    drive.prefill(range(COUNT), [np.arange(PROMPT) * (s + 3) % TINY.vocab for s in range(COUNT)])
    return drive


def run(
    drive: Driver, parents: Sequence[int], draws: Draws, trees: bool, salt: int
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The tokens drawn at every node of one step; its sequences stay as long as they are."""
    who, size = np.arange(COUNT), len(parents)
    tokens = [(np.arange(size) * 7 + 11 * s + salt) % TINY.vocab for s in range(COUNT)]
    plain = drive.batch(who, tokens)
    drive.lengths[who] -= size
    step = as_trees(plain, parents) if trees else plain
    step = replace(step, sampled=np.arange(COUNT * size, dtype=np.int32))
    nobody = np.full(step.num_tokens, -1, np.int32)
    launched = drive.steps.launch(step, nobody, nobody.tolist(), draws)
    return np.array(launched.draw(draws).result().tokens)


def as_trees(plain: ForwardBatch, parents: Sequence[int]) -> ForwardBatch:
    """The same tokens in the same slots, each sequence's a tree."""
    mask = masks_of(parents)
    depths = [bin(int(row)).count("1") - 1 for row in mask[:, 0]]
    first = plain.context_lens - len(parents)
    positions = (first[:, None] + np.array(depths)).reshape(-1).astype(np.int32)
    return replace(plain, positions=positions, tree_masks=np.tile(mask, (COUNT, 1)))
