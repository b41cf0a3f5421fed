"""A device that does nothing before somebody waits: the worst that an asynchronous one can do.

Forwards, page copies and draws are queued with copies of their arguments, as launches are; waiting for
one runs it and what was queued before it, no more. Whoever reads a token too early, or writes an
array that is still to be read, is found out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from octavo.kernels.draws import Drawn, Draws, RowLogprobs
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Backend, Forward, KVCache, Limits, Program
from octavo.sampling import Sampler, SamplingBatch, TokenLists
from octavo.sampling.sampler import RowError


class Queue:
    """What was launched and has not run.

    Attributes:
        overlaps: how often something was launched while something else had not run.
        fail: called before each launch with its number (tests raise here).
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self.launches = self.overlaps = 0
        self.fail: Callable[[int], None] = lambda number: None

    @property
    def empty(self) -> bool:
        return not self._waiting

    def put(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)

    def launch(self) -> None:
        self.launches += 1
        self.overlaps += bool(self._waiting)
        self.fail(self.launches)

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self._waiting.popleft()()


class LateKV:
    """Pages whose copies are queued."""

    def __init__(self, kv: KVCache, queue: Queue) -> None:
        self._kv, self._queue = kv, queue

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        kept = list(pairs)
        if kept:
            self._queue.put(lambda: self._kv.copy_pages(kept))

    def move_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        kept = list(pairs)
        self._queue.put(lambda: self._kv.move_slots(kept))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)


class LateBackend:
    """Another backend, whose programs wait for all that was queued before them."""

    def __init__(self, backend: Backend, queue: Queue) -> None:
        self._backend, self._queue = backend, queue

    def capture(self, forward: Forward, limits: Limits) -> Program:
        program, queue = self._backend.capture(forward, limits), self._queue

        class Waiting:
            def replay(self, batch: ForwardBatch) -> F32:
                queue.run(lambda: queue.empty)
                return program.replay(batch)

        return Waiting()

    def decoder(self, *_: object, **__: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class LateSteps:
    """A DeviceSteps over a program of the CPU."""

    def __init__(self, program: Program, vocab_size: int, max_rows: int, queue: Queue) -> None:
        self._program, self._vocab, self.queue = program, vocab_size, queue
        self.latest = np.full(max_rows, -(10**6), np.int32)  # nobody's token
        self.most_logprobs = 64

    def prepare(self) -> None:
        """Nothing is compiled."""

    def lacks(self, draws: Draws) -> str | None:
        return "so many log-probabilities" if draws.numbers.most > self.most_logprobs else None

    def launch(
        self, batch: ForwardBatch, sources: Any, owners: Sequence[int], draws: Draws | None = None
    ) -> LateStep:
        self.queue.launch()
        step = LateStep(self, owners, draws)
        kept = {f.name: getattr(batch, f.name) for f in fields(batch)}
        kept = {name: None if each is None else each.copy() for name, each in kept.items()}
        sources = sources.copy()

        def run() -> None:
            fed = np.where(sources >= 0, self.latest[sources], kept["token_ids"])
            assert (fed >= 0).all(), "a token that nobody drew"
            now = replace(batch, **kept)
            step.values = self._program.replay(replace(now, token_ids=fed.astype(np.int32))).copy()

        self.queue.put(run)
        return step


class LateStep:
    def __init__(self, steps: LateSteps, owners: Sequence[int], promised: Draws | None) -> None:
        self._steps, self._owners, self._promised = steps, list(owners), promised
        self.values: F32 | None = None
        self.drawn: Drawn | None = None

    def draw(self, draws: Draws) -> LateStep:
        assert self._promised is None or self._promised is draws
        batch = batch_of(draws)

        def run() -> None:
            assert self.values is not None
            found = Sampler().sample(self.values, batch) if len(batch) else []
            self.drawn = drawn_of(found, draws.numbers.most)
            for owner, token in zip(self._owners, self.drawn.tokens, strict=True):
                if owner >= 0:
                    self._steps.latest[owner] = max(token, 0)

        self._steps.queue.put(run)
        return self

    def result(self) -> Drawn:
        self._steps.queue.run(lambda: self.drawn is not None)
        assert self.drawn is not None
        return self.drawn

    def logits(self) -> F32:
        self._steps.queue.run(lambda: self.values is not None)
        assert self.values is not None
        return self.values


def batch_of(draws: Draws) -> SamplingBatch:
    """The SamplingBatch again."""
    rows = draws.numbers.records.copy()
    edits, none = draws.edits, TokenLists.none(len(rows))
    if edits is None:
        return SamplingBatch(rows, draws.positions.copy(), none, none, none)
    lists = [
        TokenLists(each.starts.copy(), each.tokens.copy(), each.values.copy())
        for each in (edits.bias, edits.banned, edits.seen)
    ]
    mask = None if edits.mask is None else edits.mask.copy()
    return SamplingBatch(rows, draws.positions.copy(), *lists, mask=mask, boost=edits.boost)


def drawn_of(found: Sequence[Any], most: int) -> Drawn:
    tokens = np.array([-1 if isinstance(t, RowError) else t.token_id for t in found], np.int32)
    if most < 0:
        return Drawn(tokens)
    top = [[*getattr(t, "top", ()), *[(-1, 0.0)] * most][:most] for t in found]
    scores = RowLogprobs(
        np.array([getattr(t, "logprob", None) or 0.0 for t in found]),
        np.array([getattr(t, "rank", 0) for t in found], np.int32),
        np.array([[token for token, _ in row] for row in top], np.int32).reshape(len(found), most),
        np.array([[value for _, value in row] for row in top], np.float64).reshape(len(found), most),
    )
    return Drawn(tokens, scores)
