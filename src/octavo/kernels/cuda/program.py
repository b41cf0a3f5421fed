"""Programs as CUDA graphs: decode and trees are recorded per bucket, everything else runs eagerly.

    capture    when a form is first needed: its steps run eagerly until the graph is there (capture.py)
    replay     the batch's arrays are padded to the bucket in pinned memory, moved by one copy

The model's memory during a capture comes from one pool that all graphs share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.kernels.batch import ForwardBatch
from octavo.kernels.cuda.buckets import Bucket, Form, Forms
from octavo.kernels.cuda.capture import Captures
from octavo.kernels.cuda.eager import OpsMaker, check_limits
from octavo.kernels.cuda.errors import step_errors
from octavo.kernels.cuda.ops import value
from octavo.kernels.ops import F32, Forward, Inputs, Limits


@dataclass(slots=True, eq=False)
class Captured:
    """A bucket and, once it was recorded, its graph and the logits that it leaves."""

    bucket: Bucket
    graph: Any = None
    logits: torch.Tensor | None = None


class GraphProgram:
    """A forward whose decode and tree steps are replayed as CUDA graphs.

    Args:
        captures: who records them.
        page_size: slots of a page: a context is no longer than its table.
    """

    def __init__(
        self, maker: OpsMaker, forward: Forward, limits: Limits, captures: Captures, page_size: int = 16
    ) -> None:
        self._maker, self._forward, self._limits = maker, forward, limits
        self._captures, self._page_size = captures, page_size
        self._forms = Forms(limits)
        self._captured: dict[Form, Captured] = {}
        self.replays = 0

    def replay(self, batch: ForwardBatch) -> F32:
        """The logits on the host: the one place where the host waits for the device."""
        with step_errors():
            return np.asarray(self.launch(batch).float().cpu().numpy())

    def launch(self, batch: ForwardBatch) -> torch.Tensor:
        """The same on the device, without waiting; valid until the next launch."""
        check_limits(batch, self._limits)
        form = self._forms.of(batch)
        if form is None or not (form.decodes or form.words):  # (plain chunks here are prompts to be scored)
            return value(self._forward(self._maker.eager(batch), Inputs(batch)))
        held, new = self._captured.get(form), False
        if held is None:
            held, new = Captured(self._bucket(form)), True
            self._captured[form] = held
        held.bucket.write(batch)
        if held.graph is not None and held.logits is not None:
            held.graph.replay()
            self.replays += 1
            return held.logits[: batch.num_sampled]
        result = self._run(held.bucket)
        if new:
            self._want(held)
        return result[: batch.num_sampled]

    def _want(self, held: Captured) -> None:
        def take(graph: Any, logits: torch.Tensor) -> None:
            held.logits = logits
            held.graph = graph  # last: whoever sees it finds the rest

        form = held.bucket.form
        self._captures.want(
            str(form), lambda: self._run(held.bucket), lambda: self._run(self._bucket(form)), take
        )

    def _run(self, bucket: Bucket) -> torch.Tensor:
        return value(self._forward(self._maker.on(bucket.batch), Inputs()))

    def _bucket(self, form: Form) -> Bucket:
        return Bucket(form, self._limits, self._page_size, self._maker.device)
