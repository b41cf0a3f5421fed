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


def read_in_order(
    backend: CpuBackend, phases: Sequence[Sequence[int]], products: Sequence[int] = (),
    rounds: int = SWEEP_ROUNDS,
) -> float:  # fmt: skip
    """Seconds in which all threads read phases of pieces of so many bytes, one phase after the other.

    The pieces of a phase are shared out as a program's products are, and all are read before the next phase
    begins. The fastest of five ways to read; of a way the median over the rounds counts.

    Args:
        products: of each phase, how often a line's numbers are multiplied, eight of 16 bits at a time
            (products_within); empty: nothing is computed.

    Raises:
        ValueError: a piece has no bytes, there are none, or a phase lacks its number of products.
    """
    return _native.read_in_order(backend.pool, phases, products or [0] * len(phases), rounds)


def products_within(line_s: float, rounds: int = 200) -> int:
    """The most products of a line, eight numbers of 16 bits each, that take one core so many seconds at most.

    The lines lie in its second-level cache meanwhile; reading them counts. 0, where that alone takes longer.
    """
    fitting = 0
    while fitting < _native.most_products() and _native.line_seconds(fitting + 1, rounds) <= line_s:
        fitting += 1
    return fitting


def clock_rate() -> float:
    """Cycles a second of one core, now."""
    return _native.clock_rate()
