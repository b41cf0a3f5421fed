"""Several servers on the same work, in turns, beside a probe that says how quiet the machine was.

round 1   probe  A  probe  B  probe  C
round 2   probe  B  probe  C  probe  A      who begins changes, so nobody is always the warmed machine's
...

Each round asks prompts of its own, the same of every server: none finds a former round's in its cache.
Figures are medians of the rounds, with the highest over the lowest. A probe is the same small work each time,
so its spread is the machine's alone.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.bench.serving.figures import Figures, cached_share
from octavo.bench.workload import spread

COMPARED = {
    "output_throughput": ("tokens/s", True),
    "request_throughput": ("requests/s", True),
    "p50_ttft_ms": ("TTFT p50 ms", False),
    "p50_tpot_ms": ("TPOT p50 ms", False),
    "p99_itl_ms": ("ITL p99 ms", False),
}
"""Figures by their names in Figures.summary(): what they are called, and whether more is better."""
NOISY = 1.1
"""Highest over lowest of the probes, from which on the machine was not quiet."""
PROBE_SIZE, PROBE_TIMES = 384, 20
SETTLE_TIMES, SETTLE_S = 30, 0.1
INTERRUPTED = "interrupted"
Load = Callable[[int], Awaitable[Figures]]
"""A round's number -> what came of the load that it puts on."""


@dataclass(frozen=True, slots=True)
class Median:
    """Of a figure over the rounds; spread: highest over lowest."""

    value: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Median | None:
        """None: nothing was measured."""
        return cls(statistics.median(values), spread(values)) if values and min(values) > 0 else None


@dataclass(slots=True)
class Side:
    """One server.

    Attributes:
        rounds: what was measured. not_measured: why nothing more was; None: nothing is missing.
    """

    name: str
    rounds: list[Figures] = field(default_factory=list)
    not_measured: str | None = None

    @property
    def cached_share(self) -> float | None:
        """Which part of all rounds' prompt tokens came from its cache; None: it does not say."""
        return cached_share(self.rounds)

    def median(self, figure: str) -> Median | None:
        """Of a figure in COMPARED; None: no round has it."""
        found = [each.summary().get(figure) for each in self.rounds]
        return Median.of([value for value in found if isinstance(value, float)])


@dataclass(slots=True)
class Compared:
    """All sides.

    Attributes:
        probes: seconds of the probe, in the order of time.
        cut: why there are fewer rounds than asked for; None: there are not.
    """

    sides: list[Side]
    probes: list[float] = field(default_factory=list)
    cut: str | None = None

    @property
    def noise(self) -> float | None:
        """Highest over lowest of the probes; None: there was no load for them to stand beside."""
        measured = any(side.rounds for side in self.sides)
        return spread(self.probes) if measured and self.probes else None

    def ratio(self, side: Side, figure: str) -> float | None:
        """A side's median over the first side's."""
        ours, theirs = side.median(figure), self.sides[0].median(figure)
        return None if ours is None or theirs is None else ours.value / theirs.value

    def differ(self, side: Side, figure: str) -> bool | None:
        """Whether a side and the first one are farther apart than the rounds of either; None: no figure."""
        ours, theirs = side.median(figure), self.sides[0].median(figure)
        if ours is None or theirs is None:
            return None
        apart = max(ours.value / theirs.value, theirs.value / ours.value)
        return apart > max(ours.spread, theirs.spread)


async def compare(
    loads: Mapping[str, Load],
    rounds: int,
    probe: Callable[[], float],
    stop: asyncio.Event | None = None,
    begins: Callable[[str, int], None] = lambda name, number: None,
) -> Compared:
    """Put each load on in turns, rounds times. A side that answers nothing is left out from then on.

    Args:
        loads: a server's load by its name; it is run once a round.
        probe: seconds of the reference work, run before each load.
        stop: once it is set, what runs is the last.
        begins: called with (name, round) before a load.
    """
    sides = {name: Side(name) for name in loads}
    found = Compared(list(sides.values()))
    for number in range(rounds):
        names = list(loads)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            side = sides[name]
            if side.not_measured is not None:
                continue
            if stop is not None and stop.is_set():
                found.cut = INTERRUPTED
                continue
            begins(name, number)
            found.probes.append(probe())
            figures = await loads[name](number)
            if figures.completed and figures.cut is None:
                side.rounds.append(figures)
            elif figures.cut is None:
                side.not_measured = next(iter(figures.errors), "no answer")
            else:
                found.cut = figures.cut
    return found


def round_seed(seed: int, number: int, again: int = 0) -> int:
    """Of a round's prompts: one for each round of a --seed, and none that the next --seed has.

    Args:
        again: how often the same server stands before under other names: its cache would know their prompts.
    """
    return random.Random(f"round {number} of {seed}, again {again}").getrandbits(32)


async def settle(probe: Callable[[], float]) -> None:
    """Wait until three probes in a row take as long, 3 seconds at most.

    A server that has just started still prepares what its first requests will need. None of these probes is
    kept: those between the loads are to tell of the machine, not of a server's start.
    """
    found = [probe()]
    for _ in range(SETTLE_TIMES):
        await asyncio.sleep(SETTLE_S)
        found = [*found[-2:], probe()]
        if len(found) == 3 and spread(found) <= NOISY:
            return


def reference_seconds() -> float:
    """Of a small product of matrices, the median of several: what a machine takes that does nothing else."""
    a = np.random.default_rng(0).standard_normal((PROBE_SIZE, PROBE_SIZE), np.float32)
    times = []
    for _ in range(PROBE_TIMES):
        begin = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
