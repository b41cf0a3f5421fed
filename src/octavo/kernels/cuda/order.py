"""Kernels that begin before the one before them has ended (Hopper's programmatic dependent launch).

A step of one stream is some hundreds of kernels of a few microseconds, with a microsecond between any two.
A chained kernel takes its place on the device while the one before it still runs, may read what no kernel
writes (weights), and waits before it touches anything else. Each of its programs waits, those that have
nothing to do as well: who waits for it relies on its having waited.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def in_turn(CHAINED: tl.constexpr):
    """Until all kernels before have ended, and what they wrote is seen. The next may take its place now."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()


@cache
def _can_chain(index: int | None) -> bool:
    return torch.cuda.get_device_capability(index) >= (9, 0)


def chained(x: torch.Tensor) -> dict[str, bool]:
    """What a kernel with in_turn is launched with, on x's device."""
    if x.device.type == "cuda" and _can_chain(x.device.index):
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}
