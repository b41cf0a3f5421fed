"""Programs as CUDA graphs: decode and trees are recorded per bucket, everything else runs eagerly.

    capture    when a form is first needed: its steps run eagerly until the graph is there (capture.py)
    replay     the batch's arrays are padded to the bucket in pinned memory, moved by one copy

The model's memory during a capture comes from one pool that all graphs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from octavo.kernels.cuda.buckets import Bucket, Form, Forms
from octavo.kernels.cuda.capture import Captures
from octavo.kernels.cuda.eager import Given, OpsMaker, on_host, values
from octavo.kernels.cuda.errors import step_errors
from octavo.kernels.cuda.ops import value
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Forward, Inputs, Limits, Rows
from octavo.kernels.program import Signature


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """A graph, and the tensors at fixed addresses that each of its replays fills."""

    graph: Any
    logits: torch.Tensor
    kept: dict[str, torch.Tensor]


@dataclass(slots=True, eq=False)
class Captured:
    """A bucket and, once a graph of it was recorded, that graph.

    Attributes:
        given: at fixed addresses, as the bucket's arrays are.
        recorded: set by the thread that records, while another launches: a launch reads it once.
    """

    bucket: Bucket
    given: dict[str, torch.Tensor]
    recorded: CapturedGraph | None = None


class GraphProgram:
    """A forward whose decode and tree steps are replayed as CUDA graphs.

    Args:
        captures: who records them; None: all steps run eagerly.
        page_size: slots of a page: a context is no longer than its table.
    """

    def __init__(
        self,
        maker: OpsMaker,
        forward: Forward,
        limits: Limits,
        captures: Captures | None,
        page_size: int = 16,
    ) -> None:
        self._maker, self._forward, self._limits = maker, forward, limits
        self._captures, self._page_size = captures, page_size
        self._forms = Forms(limits)
        self._captured: dict[Form, Captured] = {}
        self._signature = Signature.of(forward, limits)
        # Rows whose number comes with their array have no fixed shape.
        self._fixed = all(buffer.rows is not Rows.GIVEN for buffer in self._signature.given.values())
        self._kept: dict[str, torch.Tensor] = {}
        self.replays = 0

    def replay(self, batch: ForwardBatch, given: Mapping[str, Given] | None = None) -> F32:
        """The logits on the host: the one place where the host waits for the device."""
        with step_errors():
            return on_host(self.launch(batch, given))

    def kept(self, name: str) -> F32:
        with step_errors():
            return on_host(self.kept_there(name))

    def kept_there(self, name: str) -> torch.Tensor:
        """kept() on the device, without waiting: another program may be given it."""
        self._signature.check_kept(name, bool(self._kept))
        return self._kept[name]

    def launch(self, batch: ForwardBatch, given: Mapping[str, Given] | None = None) -> torch.Tensor:
        """The same on the device, without waiting; valid until the next launch."""
        self._limits.check(batch)
        arrays = given or {}
        self._signature.check(batch, self._limits, arrays)
        form = self._forms.of(batch) if self._fixed else None
        # (Plain chunks here are prompts to be scored.)
        if self._captures is None or form is None or not (form.decodes or form.words):
            inputs = Inputs(batch, self._limits.extras, self._maker.there(arrays))
            result = value(self._forward(self._maker.eager(batch), inputs))
            self._kept = values(inputs.kept)
            return result
        held, new = self._captured.get(form), False
        if held is None:
            held, new = self._new(form), True
            self._captured[form] = held
        held.bucket.write(batch)
        for name, array in arrays.items():
            held.given[name][: len(array)] = torch.as_tensor(array)
        recorded = held.recorded
        if recorded is not None:
            recorded.graph.replay()
            self.replays += 1
            result, kept = recorded.logits, recorded.kept
        else:
            result, kept = self._run(held)
            if new:
                self._want(self._captures, held)
        # A recorded step samples each of its tokens.
        self._kept = {name: x[: batch.num_tokens] for name, x in kept.items()}
        return result[: batch.num_sampled]

    def _want(self, captures: Captures, held: Captured) -> None:
        kept: dict[str, torch.Tensor] = {}

        def run() -> torch.Tensor:
            logits, found = self._run(held)
            kept.update(found)
            return logits

        def warm() -> torch.Tensor:
            return self._run(self._new(held.bucket.form))[0]

        def take(graph: Any, logits: torch.Tensor) -> None:
            held.recorded = CapturedGraph(graph, logits, kept)

        captures.want(str(held.bucket.form), run, warm, take)

    def _run(self, held: Captured) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The forward over a bucket: its result, and what it keeps."""
        inputs = Inputs(None, self._limits.extras, held.given)
        result = value(self._forward(self._maker.on(held.bucket.batch), inputs))
        return result, values(inputs.kept)

    def _new(self, form: Form) -> Captured:
        device, given = self._maker.device, self._signature.given.items()
        arrays = {
            name: torch.zeros((form.tokens, buffer.width), dtype=self._maker.dtype, device=device)
            for name, buffer in given
        }
        return Captured(Bucket(form, self._limits, self._page_size, device), arrays)
