"""What a GPU can say, as errors for people: no memory, or gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from octavo.errors import CapacityError, DeviceLostError, StepTooLargeError

ADVICE = "Use a smaller or quantized model, fewer pages, or a lower --gpu-memory-utilization"


OTHERS = 2 << 30
"""Bytes beyond what torch holds of a GPU that are more than the driver's own."""


def tried(error: BaseException) -> str:
    """How much the allocation was that failed, where torch tells."""
    found = re.search(r"Tried to allocate ([\d.]+ [KMGT]iB)", str(error))
    return f"; {found[1]} more were asked for" if found else ""


def fatal(error: BaseException) -> bool:
    """Whether the process has lost its GPU: after any error of the driver but a lack of memory, every
    later call fails too (an Xid, a kernel's bad address, a device that fell off the bus)."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    kind = getattr(torch, "AcceleratorError", None)  # since torch 2.8
    if kind is not None and isinstance(error, kind):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("CUDA error" in text or "CUDA driver error" in text)


def lost(error: BaseException) -> DeviceLostError:
    """The first line of what the driver says, and what can be done."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DeviceLostError(
        f"the GPU can no longer be used ({said}); the driver's reason (Xid) is in the kernel's log. "
        "Start again, with --device cpu where the GPU does not come back"
    )


@contextmanager
def clear_errors(device: torch.device, what: str) -> Iterator[None]:
    """While loading: too little memory as one line.

    Raises:
        CapacityError: with what was asked for, and what is free.
        DeviceLostError: the driver failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        held = f", others hold {others / 1e9:.1f}" if others > OTHERS else ""
        raise CapacityError(
            f"{what} do not fit on the GPU: {free / 1e9:.1f} of {total / 1e9:.1f} GB are free{held}"
            f"{tried(error)}. {ADVICE}"
        ) from error
    except RuntimeError as error:
        if not fatal(error):
            raise
        raise lost(error) from error


@contextmanager
def step_errors() -> Iterator[None]:
    """While a step is launched or waited for.

    Raises:
        StepTooLargeError: there was no memory for it; a smaller one may do.
        DeviceLostError: the driver failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error).splitlines()[0]
        raise StepTooLargeError(f"the GPU has no memory for this step ({said}). {ADVICE}") from error
    except RuntimeError as error:
        if not fatal(error):
            raise
        raise lost(error) from error
