"""Lane: arrays of fixed shapes that travel to the device together, by one copy from pinned memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16
Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


class Lane:
    """Two stretches of host memory, used in turn, and their twin on the device.

    A copy may still be waiting behind the step before it when the next one is written; so there are
    two hosts' sides, and each is written only after its last copy has ended.

    Args:
        fields: name -> (type, shape); they lie one after another, each 16-byte aligned.

    Attributes:
        device: the arrays on the device, by name.
    """

    def __init__(self, fields: Fields, device: torch.device) -> None:
        spans, total = {}, 0
        for name, (dtype, shape) in fields.items():
            nbytes = int(np.prod(shape)) * dtype.itemsize
            spans[name] = total, nbytes
            total += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._cuda = device.type == "cuda"
        total = max(total, ALIGNMENT)

        def views(flat: torch.Tensor) -> dict[str, torch.Tensor]:
            return {
                name: flat[at : at + nbytes].view(fields[name][0]).view(fields[name][1])
                for name, (at, nbytes) in spans.items()
            }

        pinned = (torch.zeros(total, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(2))
        self._hosts = [(flat, {name: view.numpy() for name, view in views(flat).items()}) for flat in pinned]
        self._sent: list[Any] = [None, None]
        self._turn = 0
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self.device = views(self._device)

    def writable(self) -> dict[str, npt.NDArray[Any]]:
        """The host's side that the next send() moves; waits until it may be written."""
        if self._sent[self._turn] is not None:
            self._sent[self._turn].synchronize()
            self._sent[self._turn] = None
        return self._hosts[self._turn][1]

    def send(self) -> None:
        """Start the copy, on the current stream, and turn to the other side."""
        self._device.copy_(self._hosts[self._turn][0], non_blocking=True)
        if self._cuda:
            make: Any = torch.cuda.Event  # torch has no types for it
            event = make()
            event.record()
            self._sent[self._turn] = event
        self._turn = 1 - self._turn
