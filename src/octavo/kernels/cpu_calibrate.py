"""What this machine can do, measured by the native kernels: the denominators of a roofline."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kernels import _native
from octavo.kernels.cpu import CpuBackend

SWEEP_BYTES = 1 << 28
"""Far larger than any cache of today's CPUs that a process could claim for itself."""
SWEEP_ROUNDS = 5
"""Of each way to read, of which there are ten; the middle one counts."""


def read_bandwidth(backend: CpuBackend, nbytes: int = SWEEP_BYTES, rounds: int = SWEEP_ROUNDS) -> float:
    """Bytes a second that all threads of the backend read together, over and over from nbytes of memory.

    The fastest of several ways to read, each tried in every round; of a way the median counts.
    """
    return _native.read_bandwidth(backend.pool, nbytes, rounds)


def read_in_order(backend: CpuBackend, phases: Sequence[Sequence[int]], rounds: int = SWEEP_ROUNDS) -> float:
    """Seconds in which all threads read phases of pieces of so many bytes, one phase after the other.

    The pieces of a phase are shared out as a program's are, and all are read before the next phase begins.
    The fastest of five ways to read; of a way the median over the rounds counts.

    Raises:
        ValueError: a piece has no bytes, or there are none.
    """
    return _native.read_in_order(backend.pool, phases, rounds)


def clock_rate() -> float:
    """Cycles a second of one core, now."""
    return _native.clock_rate()
