"""Sequences over one model's pages: prompts in, greedy tokens out, no engine in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gpu.models import Model
from octavo.kernels.draws import Draws, Numbers, idle_rows
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Inputs, Limits, Ops, Tensor


class Driver:
    """count sequences of at most length tokens each; sampled: rows of a step, if more than count."""

    def __init__(
        self, model: Model, count: int, length: int, max_tokens: int, sampled: int | None = None
    ) -> None:
        self.model, self.size = model, model.page_size
        self._width = -(-length // self.size)
        tables = np.arange(count * self._width, dtype=np.int32).reshape(count, self._width)
        self._tables = tables
        self.lengths = np.zeros(count, np.int32)

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            return model.stack(ops, inputs, model.kv)

        limits = Limits(max_tokens, count, sampled or count, self._width)
        self.program: Any = model.backend.capture(forward, limits)
        self.steps: Any = model.backend.steps(forward, limits, model.shape.vocab)

    def batch(self, who: np.ndarray[Any, Any], tokens: Sequence[Any]) -> ForwardBatch:
        """The next tokens of some sequences; the last of each is sampled."""
        counts = np.array([len(t) for t in tokens], np.int32)
        start = np.zeros(len(who) + 1, np.int32)
        start[1:] = np.cumsum(counts)
        if len(who) == start[-1]:
            positions = self.lengths[who]
        else:
            begins = self.lengths[who]
            positions = np.concatenate(
                [np.arange(b, b + n, dtype=np.int32) for b, n in zip(begins, counts, strict=True)]
            )
        rows = np.repeat(who, counts)
        slots = self._tables[rows, positions // self.size] * self.size + positions % self.size
        self.lengths[who] += counts
        return ForwardBatch(
            np.concatenate(tokens).astype(np.int32), positions.astype(np.int32), slots.astype(np.int32),
            start, self.lengths[who], np.ascontiguousarray(self._tables[who]), start[1:] - np.int32(1),
        )  # fmt: skip

    def step(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits, on the device if the program leaves them there."""
        if hasattr(self.program, "launch"):
            return torch.as_tensor(self.program.launch(batch))
        return torch.from_numpy(self.program.replay(batch))

    def warm(self) -> None:
        """Steps met so far are recorded: without this, what is measured may still run eagerly."""
        if self.model.backend.captures is not None:
            self.model.backend.captures.wait(120)

    def stream(self, first: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        """count greedy tokens of every sequence [count, sequences], as the engine's runner makes them:
        draws on the device, two steps in flight, the only wait is for the tokens of the step before."""
        who = np.arange(len(first))
        known, here = [], np.full(len(who), -1, np.int32)
        draws, pending = draws_with(len(who)), None
        for step in range(count):
            tokens = first if step == 0 else np.zeros_like(first)
            batch = self.batch(who, list(tokens.reshape(-1, 1)))
            sources = here if step == 0 else who.astype(np.int32)
            following = self.steps.launch(batch, sources, who.tolist(), draws).draw(draws)
            if pending is not None:
                known.append(pending.result().tokens)
            pending = following
        assert pending is not None, "no step was asked for"
        return np.array([*known, pending.result().tokens])

    def prefill(self, who: Sequence[int], prompts: Sequence[Any]) -> np.ndarray[Any, Any]:
        logits = self.step(self.batch(np.array(who), prompts))
        return np.asarray(logits.argmax(dim=1).cpu().numpy())

    def decode(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """One token of every sequence: the only wait is for the tokens."""
        who = np.arange(len(tokens))
        logits = self.step(self.batch(who, list(tokens.reshape(-1, 1))))
        return np.asarray(logits.argmax(dim=1).cpu().numpy())

    def pretend(self, length: int) -> None:
        """As if so many tokens had been computed: attention reads whatever lies there."""
        self.lengths[:] = length


def draws_with(rows: int, **numbers: Any) -> Draws:
    """What so many rows ask for: temperature 0 and nothing else, but for these numbers of theirs."""
    records = idle_rows(rows)
    for name, value in numbers.items():
        records[name] = value
    return Draws(Numbers.of(records), np.zeros(rows, np.int64))


def replayed(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The same as a graph: what the device needs for it, whatever a launch costs the host."""
    if device.type != "cuda":
        return run
    make: Any = torch.cuda.Stream  # torch has no types for it
    stream = make(device)
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run()
    return graph.replay


def seconds(run: Callable[[], object], repeat: int, device: torch.device) -> float:
    """The median of repeated runs: between CUDA events on a GPU, by the clock elsewhere."""
    run()
    times = []
    for _ in range(repeat):
        if device.type == "cuda":
            event: Any = torch.cuda.Event
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            since = time.perf_counter()
            run()
            times.append(time.perf_counter() - since)
    return float(np.median(times))
