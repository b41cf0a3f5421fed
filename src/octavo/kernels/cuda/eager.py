"""Ops that run at once, on one batch: what programs and steps call, captured or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from octavo.errors import CapacityError
from octavo.kernels.batch import ForwardBatch
from octavo.kernels.cuda.batch import DeviceBatch, move
from octavo.kernels.cuda.errors import step_errors
from octavo.kernels.cuda.gemm import Policy
from octavo.kernels.cuda.ops import Constants, CudaOps, value
from octavo.kernels.ops import F32, Forward, Inputs, Limits, Rows, Tensor


def check_limits(batch: ForwardBatch, limits: Limits) -> None:
    """
    Raises:
        CapacityError: the batch is larger than what was planned for.
    """
    if (
        batch.num_tokens > limits.max_tokens
        or batch.num_sequences > limits.max_sequences
        or batch.num_sampled > limits.max_sampled
        or batch.page_tables.shape[1] > limits.max_pages_per_sequence
    ):
        raise CapacityError(
            f"a batch of {batch.num_tokens} tokens and {batch.num_sequences} sequences exceeds {limits}"
        )


class EagerOps(CudaOps):
    """CudaOps with a way in and out for tests of single ops."""

    def tensor(self, x: F32, rows: Rows = Rows.TOKENS) -> Tensor:
        return Tensor(rows, x.shape[1], torch.tensor(x, device=self.batch.slots.device, dtype=self.dtype))

    def value(self, x: Tensor) -> F32:
        return np.asarray(value(x).float().cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class OpsMaker:
    """What ops need besides a batch."""

    device: torch.device
    dtype: torch.dtype
    policy: Policy
    constants: Constants

    def eager(self, batch: ForwardBatch) -> EagerOps:
        """Ops over a batch of any shape, which is moved to the device."""
        return self.on(move(batch, self.device))

    def on(self, batch: DeviceBatch) -> EagerOps:
        """Ops over arrays that are on the device already."""
        return EagerOps(batch, self.dtype, self.policy, self.constants)


class EagerProgram:
    """No capture: a replay calls the model code again."""

    def __init__(self, maker: OpsMaker, forward: Forward, limits: Limits) -> None:
        self._maker, self._forward, self._limits = maker, forward, limits

    def replay(self, batch: ForwardBatch) -> F32:
        check_limits(batch, self._limits)
        with step_errors():
            result = self._forward(self._maker.eager(batch), Inputs(batch))
            return np.asarray(value(result).float().cpu().numpy())
