"""Programs as CUDA graphs: decode is captured per batch bucket, everything else runs eagerly.

    bucket     1  2  4  8  16  24  32 ... max_sequences     sequences of one token each
    capture    when a bucket is first needed: its steps run eagerly until the graph is there (capture.py)
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
from octavo.kernels.cuda.capture import Captures
from octavo.kernels.cuda.errors import step_errors
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


class Bucket:
    """Arrays at fixed addresses for decode steps of up to `size` sequences, all of it padding at first."""

    def __init__(self, size: int, limits: Limits, page_size: int, device: torch.device) -> None:
        self._staging = Staging(shapes(size, limits), device)
        self.batch: DeviceBatch = self._staging.batch(1, limits.max_pages_per_sequence * page_size)
        host = self._staging.host
        host["slots"][...] = -1
        host["query_start"][...] = np.arange(size + 1)
        host["sampled"][...] = np.arange(size)
        self._staging.send()

    def write(self, batch: ForwardBatch) -> None:
        """Start moving a batch into the arrays."""
        pad(batch, self._staging.host)
        self._staging.send()


@dataclass(slots=True, eq=False)
class Captured:
    """A bucket and, once it was recorded, its graph and the logits that it leaves."""

    bucket: Bucket
    graph: Any = None
    logits: torch.Tensor | None = None


class GraphProgram:
    """A forward whose decode steps are replayed as CUDA graphs.

    Args:
        captures: who records them.
        page_size: slots of a page: a context is no longer than its table.
    """

    def __init__(
        self,
        backend: CudaBackend,
        forward: Forward,
        limits: Limits,
        check: Callable[[ForwardBatch, Limits], None],
        captures: Captures,
        page_size: int = 16,
    ) -> None:
        self._backend, self._forward, self._limits = backend, forward, limits
        self._check, self._captures, self._page_size = check, captures, page_size
        self._sizes = buckets(min(limits.max_sequences, limits.max_sampled))
        self._captured: dict[int, Captured] = {}
        self.replays = 0

    def replay(self, batch: ForwardBatch) -> F32:
        """The logits on the host: the one place where the host waits for the device."""
        with step_errors():
            return np.asarray(self.launch(batch).float().cpu().numpy())

    def launch(self, batch: ForwardBatch) -> torch.Tensor:
        """The same on the device, without waiting; valid until the next launch."""
        self._check(batch, self._limits)
        if not is_decode(batch) or batch.num_sequences > self._sizes[-1]:
            return value(self._forward(self._backend.eager(batch), Inputs(batch)))
        size = bucket_of(self._sizes, batch.num_sequences)
        held, new = self._captured.get(size), False
        if held is None:
            held, new = Captured(self._bucket(size)), True
            self._captured[size] = held
        held.bucket.write(batch)
        if held.graph is not None and held.logits is not None:
            held.graph.replay()
            self.replays += 1
            return held.logits[: batch.num_sequences]
        result = self._run(held.bucket)
        if new:
            self._want(held, size)
        return result[: batch.num_sequences]

    def _want(self, held: Captured, size: int) -> None:
        def take(graph: Any, logits: torch.Tensor) -> None:
            held.logits = logits
            held.graph = graph  # last: whoever sees it finds the rest

        self._captures.want(
            f"decode {size}", lambda: self._run(held.bucket), lambda: self._run(self._bucket(size)), take
        )

    def _run(self, bucket: Bucket) -> torch.Tensor:
        return value(self._forward(self._backend.on(bucket.batch), Inputs()))

    def _bucket(self, size: int) -> Bucket:
        return Bucket(size, self._limits, self._page_size, self._backend.device)
