"""Steps: forwards and draws that never leave the device; only drawn tokens travel to the host.

    latest[row] -> token_ids -> forward -> logits -> draws -> latest[row], and a copy for the host

A decode or verify step without edits or log-probabilities is one CUDA graph for each form and kind of
draws, sampling inside. With them, the graph ends at the logits, and the draws are launched after it. All
steps are on the engine thread's stream, so each finds the tokens of the one before without a wait.

A verify step draws at every node what plain decoding would draw there (runtime/drafted.py): a row
of draws for each of its tokens, whose owner is -1, because what follows the step is known on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from octavo.errors import UnsupportedError
from octavo.kernels.cuda.buckets import MAX_QUERY, Bucket, Form, Forms
from octavo.kernels.cuda.capture import Captures
from octavo.kernels.cuda.device_batch import DeviceBatch, move
from octavo.kernels.cuda.eager import OpsMaker
from octavo.kernels.cuda.errors import step_errors
from octavo.kernels.cuda.lane import Lane
from octavo.kernels.cuda.ops import value
from octavo.kernels.cuda.sample import Copied, DeviceSampler, Kind, Slate, feed
from octavo.kernels.draws import Draws
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Forward, Inputs, Limits
from octavo.kernels.program import Signature

I32 = npt.NDArray[np.int32]

MAX_GRAPHS = 256
"""Of one model: forms that are met after so many run eagerly, because each holds arrays of its own."""


class StepPlace:
    """What a captured step reads: a bucket, whose tokens come from where, and what is drawn."""

    def __init__(self, form: Form, limits: Limits, page_size: int, device: torch.device) -> None:
        self._bucket = Bucket(form, limits, page_size, device)
        self._lane = Lane({"sources": (torch.int32, (form.tokens,))}, device)
        self.slate = Slate(form.tokens, device)
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
        maker: OpsMaker,
        forward: Forward,
        limits: Limits,
        captures: Captures | None,
        vocab_size: int,
        page_size: int = 16,
    ) -> None:
        self._maker, self._forward, self._limits = maker, forward, limits
        self._captures, self._page_size = captures, page_size
        self._signature = Signature.of(forward, limits)
        if self._signature.given or self._signature.kept:
            raise UnsupportedError("steps that draw on the device are given nothing and keep nothing yet")
        self.sampler = DeviceSampler(vocab_size, limits.max_sequences, maker.device)
        self._forms = Forms(limits)
        self._places: dict[tuple[Form, Kind | None], StepPlace] = {}
        self._logits: torch.Tensor | None = None
        self.replays = 0

    def prepare(self) -> None:
        """Run padding, alone and in as many tokens as a short prompt has: kernels are compiled, or come
        from the disk, and nothing is stored."""
        query = min(self._limits.max_tokens, self._limits.max_sampled, MAX_QUERY)
        with step_errors():
            for form in (Form(1, 1), Form(1, query, query)):
                for kind in (Kind.GREEDY, Kind.NARROW):
                    self._run(self._place(form), kind)

    def lacks(self, draws: Draws) -> str | None:
        return self.sampler.lacks(draws)

    def launch(
        self, batch: ForwardBatch, sources: I32, owners: Sequence[int], draws: Draws | None = None
    ) -> LaunchedStep:
        self._limits.check(batch)
        self._signature.check_turns(batch)
        with step_errors():
            whole = draws is not None and draws.edits is None and draws.numbers.most < 0
            kind = Kind.of(draws.numbers) if draws is not None and whole else None
            form = self._forms.of(batch)
            if self._captures is None or form is None or not self._fits((form, kind)):
                return self._eagerly(batch, sources, owners)
            place, new = self._places.get((form, kind)), False
            if place is None:
                place, new = self._place(form), True
                self._places[form, kind] = place
            place.write(batch, sources, owners, draws if whole else None)
            if place.graph is not None and place.result is not None:
                place.graph.replay()
                self.replays += 1
                result = place.result
            else:
                result = self._run(place, kind)
                if new:
                    self._want(self._captures, place, form, kind)
            result = result[: batch.num_sampled]
            if kind is None:
                return LaunchedStep(self.sampler, owners, logits=result)
            return LaunchedStep(self.sampler, owners, tokens=result)

    def _fits(self, wanted: tuple[Form, Kind | None]) -> bool:
        return wanted in self._places or len(self._places) < MAX_GRAPHS

    def _want(self, captures: Captures, place: StepPlace, form: Form, kind: Kind | None) -> None:
        def take(graph: Any, result: torch.Tensor) -> None:
            place.result = result
            place.graph = graph  # last: another thread tests this field, and reads `result` then

        def warm() -> torch.Tensor:
            other = self._place(form)
            return self._forward_of(other.batch, other.sources, other.slate, Kind.NARROW)

        what = "logits" if kind is None else kind.name.lower()
        captures.want(f"{form}, {what}", lambda: self._run(place, kind), warm, take)

    def _place(self, form: Form) -> StepPlace:
        return StepPlace(form, self._limits, self._page_size, self._maker.device)

    def _run(self, place: StepPlace, kind: Kind | None) -> torch.Tensor:
        """Tokens, or, of kind None, logits in a buffer that all forms share.

        A larger one takes its place when it is needed: by then a step has run eagerly, so no capture
        makes it, and graphs that write to the one before hold it.
        """
        result = self._forward_of(place.batch, place.sources, place.slate, kind)
        if kind is not None:
            return result
        rows = len(result)
        if self._logits is None or len(self._logits) < rows:
            shape = max(rows, self._limits.max_sequences), self.sampler.vocab_size
            self._logits = torch.empty(shape, dtype=torch.float32, device=self._maker.device)
        return self._logits[:rows].copy_(result)

    def _forward_of(
        self, batch: DeviceBatch, sources: torch.Tensor, slate: Slate, kind: Kind | None
    ) -> torch.Tensor:
        feed(batch.token_ids, sources, self.sampler.latest)
        logits = value(self._forward(self._maker.on(batch), Inputs(None, self._limits.extras))).float()
        return logits if kind is None else self.sampler.tokens(logits, slate, kind, logits)

    def _eagerly(self, batch: ForwardBatch, sources: I32, owners: Sequence[int]) -> LaunchedStep:
        moved = move(batch, self._maker.device)
        if (sources >= 0).any():
            there = torch.from_numpy(np.ascontiguousarray(sources)).to(self._maker.device)
            feed(moved.token_ids, there, self.sampler.latest)
        logits = value(self._forward(self._maker.on(moved), Inputs(batch, self._limits.extras))).float()
        return LaunchedStep(self.sampler, owners, logits=logits)


class LaunchedStep:
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
            tokens = self._sampler.draw(z, draws, slate)
            most = draws.numbers.most
            scores = self._sampler.logprobs(z, tokens, slate, most) if most >= 0 else None
            return Copied(tokens, scores)

    def logits(self) -> F32:
        assert self._logits is not None, "the draws were known, and have been made"
        with step_errors():
            return np.asarray(self._logits.cpu().numpy())
