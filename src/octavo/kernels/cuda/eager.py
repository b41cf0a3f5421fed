"""Ops that run at once, on one batch: what programs and steps call, captured or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from octavo.kernels.cuda.device_batch import DeviceBatch, move
from octavo.kernels.cuda.gemm import TilePolicy
from octavo.kernels.cuda.ops import Constants, CudaOps, value
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import F32, Rows, Tensor

Given = F32 | torch.Tensor
"""What a replay is given: an array, or what another program has kept on the device."""


def on_host(x: torch.Tensor) -> F32:
    """Waits for the device."""
    return np.asarray(x.float().cpu().numpy())


def values(kept: Mapping[str, Tensor]) -> dict[str, torch.Tensor]:
    """What a forward has kept; asked for at its end, when a norm has made the sums that it could."""
    return {name: value(x) for name, x in kept.items()}


class CudaEagerOps(CudaOps):
    """CudaOps with a way in and out for tests of single ops."""

    def tensor(self, x: F32, rows: Rows = Rows.TOKENS) -> Tensor:
        return Tensor(rows, x.shape[1], torch.tensor(x, device=self.batch.token_ids.device, dtype=self.dtype))

    def value(self, x: Tensor) -> F32:
        return np.asarray(value(x).float().cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class OpsMaker:
    """What ops need besides a batch."""

    device: torch.device
    dtype: torch.dtype
    policy: TilePolicy
    constants: Constants

    def eager(self, batch: ForwardBatch) -> CudaEagerOps:
        """Ops over a batch of any shape, which is moved to the device."""
        return self.on(move(batch, self.device))

    def on(self, batch: DeviceBatch) -> CudaEagerOps:
        """Ops over arrays that are on the device already."""
        return CudaEagerOps(batch, self.dtype, self.policy, self.constants)

    def there(self, given: Mapping[str, Given]) -> dict[str, torch.Tensor]:
        """What a replay is given, on the device, in the type of activations."""
        return {
            name: torch.as_tensor(array).to(self.device, self.dtype).contiguous()
            for name, array in given.items()
        }
