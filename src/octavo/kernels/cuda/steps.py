"""Steps: forwards and draws that never leave the device; only drawn tokens travel to the host.

    latest[row] -> token_ids -> forward -> logits -> draws -> latest[row], and a copy for the host

A decode step without edits or log-probabilities is one CUDA graph for each bucket and kind of draws,
sampling inside. With them, the graph ends at the logits, and the draws are launched after it. All
steps are on the engine thread's stream, so each finds the tokens of the one before without a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from octavo.kernels.batch import ForwardBatch
from octavo.kernels.cuda.batch import DeviceBatch, move
from octavo.kernels.cuda.capture import Captures
from octavo.kernels.cuda.errors import step_errors
from octavo.kernels.cuda.lane import Lane
from octavo.kernels.cuda.ops import value
from octavo.kernels.cuda.program import Bucket, bucket_of, buckets, is_decode
from octavo.kernels.cuda.sample import Copied, DeviceSampler, Kind, Slate, feed
from octavo.kernels.draws import Draws
from octavo.kernels.ops import F32, Forward, Inputs, Limits

if TYPE_CHECKING:
    from octavo.kernels.cuda.backend import CudaBackend

I32 = npt.NDArray[np.int32]


class Place:
    """What a captured step reads: a bucket, whose tokens come from where, and what is drawn."""

    def __init__(self, size: int, limits: Limits, page_size: int, device: torch.device) -> None:
        self._bucket = Bucket(size, limits, page_size, device)
        self._lane = Lane({"sources": (torch.int32, (size,))}, device)
        self.slate = Slate(size, device)
        self.batch: DeviceBatch = self._bucket.batch
        self.sources: torch.Tensor = self._lane.device["sources"]
        self._lane.writable()["sources"][...] = -1
        self._lane.send()
        self.slate.write(None, ())
        self.graph: Any = None
        self.result: torch.Tensor | None = None

    def write(self, batch: ForwardBatch, sources: I32, owners: Sequence[int], draws: Draws | None) -> None:
        self._bucket.write(batch)
        host = self._lane.writable()["sources"]
        host[: len(sources)], host[len(sources) :] = sources, -1
        self._lane.send()
        self.slate.write(draws, owners)


class Steps:
    """A DeviceSteps of one model. Used by one thread.

    Args:
        captures: who records graphs; None: every step runs eagerly.
    """

    def __init__(
        self,
        backend: CudaBackend,
        forward: Forward,
        limits: Limits,
        check: Callable[[ForwardBatch, Limits], None],
        captures: Captures | None,
        vocab_size: int,
        page_size: int = 16,
    ) -> None:
        self._backend, self._forward, self._limits = backend, forward, limits
        self._check, self._captures, self._page_size = check, captures, page_size
        self.sampler = DeviceSampler(vocab_size, limits.max_sequences, backend.device)
        self._sizes = buckets(min(limits.max_sequences, limits.max_sampled))
        self._places: dict[tuple[int, Kind | None], Place] = {}
        self._logits: torch.Tensor | None = None
        self.replays = 0

    def lacks(self, draws: Draws) -> str | None:
        return self.sampler.lacks(draws)

    def launch(
        self, batch: ForwardBatch, sources: I32, owners: Sequence[int], draws: Draws | None = None
    ) -> Step:
        self._check(batch, self._limits)
        with step_errors():
            fits = is_decode(batch) and batch.num_sequences <= self._sizes[-1]
            if self._captures is None or not fits:
                return self._eagerly(batch, sources, owners)
            whole = draws is not None and draws.edits is None and draws.numbers.most < 0
            kind = Kind.of(draws.numbers) if draws is not None and whole else None
            size, rows = bucket_of(self._sizes, batch.num_sequences), batch.num_sequences
            place, new = self._places.get((size, kind)), False
            if place is None:
                place, new = self._place(size), True
                self._places[size, kind] = place
            place.write(batch, sources, owners, draws if whole else None)
            if place.graph is not None and place.result is not None:
                place.graph.replay()
                self.replays += 1
                result = place.result
            else:
                result = self._run(place, kind)
                if new:
                    self._want(self._captures, place, size, kind)
            if kind is None:
                return Step(self.sampler, owners, logits=result[:rows])
            return Step(self.sampler, owners, tokens=result[:rows])

    def _want(self, captures: Captures, place: Place, size: int, kind: Kind | None) -> None:
        def take(graph: Any, result: torch.Tensor) -> None:
            place.result = result
            place.graph = graph  # last: whoever sees it finds the rest

        def warm() -> torch.Tensor:
            other = self._place(size)
            return self._forward_of(other.batch, other.sources, other.slate, Kind.NARROW)

        what = "logits" if kind is None else kind.name.lower()
        captures.want(f"decode {size}, {what}", lambda: self._run(place, kind), warm, take)

    def _place(self, size: int) -> Place:
        return Place(size, self._limits, self._page_size, self._backend.device)

    def _run(self, place: Place, kind: Kind | None) -> torch.Tensor:
        """Tokens, or, of kind None, logits in the one buffer that all buckets share."""
        result = self._forward_of(place.batch, place.sources, place.slate, kind)
        if kind is not None:
            return result
        if self._logits is None:
            shape = self._sizes[-1], self.sampler.vocab_size
            self._logits = torch.empty(shape, dtype=torch.float32, device=self._backend.device)
        return self._logits[: len(result)].copy_(result)

    def _forward_of(
        self, batch: DeviceBatch, sources: torch.Tensor, slate: Slate, kind: Kind | None
    ) -> torch.Tensor:
        feed(batch.token_ids, sources, self.sampler.latest)
        logits = value(self._forward(self._backend.on(batch), Inputs())).float()
        return logits if kind is None else self.sampler.tokens(logits, slate, kind, logits)

    def _eagerly(self, batch: ForwardBatch, sources: I32, owners: Sequence[int]) -> Step:
        moved = move(batch, self._backend.device)
        if (sources >= 0).any():
            there = torch.from_numpy(np.ascontiguousarray(sources)).to(self._backend.device)
            feed(moved.token_ids, there, self.sampler.latest)
        logits = value(self._forward(self._backend.on(moved), Inputs(batch))).float()
        return Step(self.sampler, owners, logits=logits)


class Step:
    """A launched forward: its logits, or its tokens where they were drawn with it."""

    def __init__(
        self,
        sampler: DeviceSampler,
        owners: Sequence[int],
        logits: torch.Tensor | None = None,
        tokens: torch.Tensor | None = None,
    ) -> None:
        self._sampler, self._owners = sampler, owners
        self._logits, self._tokens = logits, tokens

    def draw(self, draws: Draws) -> Copied:
        with step_errors():
            if self._logits is None:
                assert self._tokens is not None, "a step leaves logits or tokens"
                return Copied(self._tokens, None)
            if not self._owners:  # nothing is drawn; what is waited for is the forward
                return Copied(torch.empty(0, dtype=torch.int32, device=self._sampler.device), None)
            slate = Slate(len(self._owners), self._sampler.device)
            slate.write(draws, self._owners)
            z = self._logits
            edited = z if draws.edits is None else self._sampler.edit(z, draws.edits, slate)
            tokens = self._sampler.tokens(z, slate, Kind.of(draws.numbers), edited)
            most = draws.numbers.most
            scores = self._sampler.scores(z, tokens, slate, most) if most >= 0 else None
            return Copied(tokens, scores)

    def logits(self) -> F32:
        assert self._logits is not None, "the draws were known, and have been made"
        with step_errors():
            return np.asarray(self._logits.cpu().numpy())
