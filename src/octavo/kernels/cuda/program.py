"""Programs as CUDA graphs: decode is captured per batch bucket, everything else runs eagerly.

    bucket     1  2  4  8  16  24  32 ... max_sequences     sequences of one token each
    capture    when a bucket is first needed: that step runs eagerly, the graph is recorded after it
    replay     the batch's arrays are padded to the bucket in pinned memory, moved by one copy

A row of padding has slot -1, so nothing of it is stored, and a context of 0, so nothing is read.
The model's memory during a capture comes from one pool that all graphs share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from octavo.kernels.batch import ForwardBatch
from octavo.kernels.cuda.batch import DeviceBatch, Staging
from octavo.kernels.cuda.ops import value
from octavo.kernels.ops import F32, Forward, Inputs, Limits

if TYPE_CHECKING:
    from octavo.kernels.cuda.backend import CudaBackend


def buckets(max_sequences: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then multiples of 8 to 64, of 16 to 256, of 64 above; the last is max_sequences."""
    sizes = {1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(320, max_sequences, 64)}
    return (*sorted(s for s in sizes if s < max_sequences), max_sequences)


def bucket_of(sizes: tuple[int, ...], sequences: int) -> int:
    """The smallest bucket that holds so many."""
    return sizes[bisect_left(sizes, sequences)]


def is_decode(batch: ForwardBatch) -> bool:
    """One token for each sequence, each sampled, no encoder and no trees: what graphs are recorded for."""
    plain = batch.cross_lens is None and batch.tree_masks is None
    return plain and batch.num_tokens == batch.num_sequences == batch.num_sampled > 0


def pad(batch: ForwardBatch, host: dict[str, Any]) -> None:
    """Write a decode batch into a bucket's host arrays; the rest of it is nobody's."""
    rows, bucket = batch.num_sequences, len(host["slots"])
    for name in ("token_ids", "positions", "context_lens"):
        host[name][:rows], host[name][rows:] = getattr(batch, name), 0
    host["slots"][:rows], host["slots"][rows:] = batch.slots, -1
    host["query_start"][...] = np.arange(bucket + 1)
    host["sampled"][...] = np.arange(bucket)
    tables = host["page_tables"]
    tables[:rows, : batch.page_tables.shape[1]] = batch.page_tables


def shapes(bucket: int, limits: Limits) -> dict[str, tuple[int, ...]]:
    """Of a bucket's arrays."""
    one = dict.fromkeys(("token_ids", "positions", "slots", "context_lens", "sampled"), (bucket,))
    return {**one, "query_start": (bucket + 1,), "page_tables": (bucket, limits.max_pages_per_sequence)}


@dataclass(slots=True, eq=False)
class Captured:
    """A bucket's arrays and, once it was recorded, its graph and the logits that it leaves."""

    staging: Staging
    batch: DeviceBatch
    graph: Any = None
    logits: torch.Tensor | None = None


class GraphProgram:
    """A forward whose decode steps are replayed as CUDA graphs.

    Args:
        record: runs a forward inside a capture and returns (graph, its result); tests give another.
        page_size: slots of a page: a context is no longer than its table.
    """

    def __init__(
        self,
        backend: CudaBackend,
        forward: Forward,
        limits: Limits,
        check: Callable[[ForwardBatch, Limits], None],
        record: Callable[[Callable[[], torch.Tensor]], tuple[Any, torch.Tensor]],
        page_size: int = 16,
    ) -> None:
        self._backend, self._forward, self._limits = backend, forward, limits
        self._check, self._record, self._page_size = check, record, page_size
        self._sizes = buckets(min(limits.max_sequences, limits.max_sampled))
        self._captured: dict[int, Captured] = {}
        self.replays = 0

    def replay(self, batch: ForwardBatch) -> F32:
        """The logits on the host: the one place where the host waits for the device."""
        return np.asarray(self.launch(batch).float().cpu().numpy())

    def launch(self, batch: ForwardBatch) -> torch.Tensor:
        """The same on the device, without waiting; valid until the next launch."""
        self._check(batch, self._limits)
        if not is_decode(batch) or batch.num_sequences > self._sizes[-1]:
            return value(self._forward(self._backend.eager(batch), Inputs(batch)))
        size = bucket_of(self._sizes, batch.num_sequences)
        held = self._captured.get(size)
        if held is None:
            held = self._captured[size] = self._bucket(size)
        pad(batch, held.staging.host)
        held.staging.send()
        if held.graph is not None and held.logits is not None:
            held.graph.replay()
            self.replays += 1
            return held.logits[: batch.num_sequences]
        result = self._run(held)  # eagerly, so that kernels are compiled and constants are moved
        held.graph, held.logits = self._record(lambda: self._run(held))
        return result[: batch.num_sequences]

    def _run(self, held: Captured) -> torch.Tensor:
        return value(self._forward(self._backend.on(held.batch), Inputs()))

    def _bucket(self, size: int) -> Captured:
        staging = Staging(shapes(size, self._limits), self._backend.device)
        longest = self._limits.max_pages_per_sequence * self._page_size
        return Captured(staging, staging.batch(1, longest))


class Recorder:
    """Records CUDA graphs that share one memory pool."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[Any, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        self._pool = graph.pool()
        return graph, result
