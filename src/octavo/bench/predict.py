"""How fast a model can be on a machine in three numbers, and what limits it: the roofline without the model.

A step takes at least as long as its bytes need at the machine's bandwidth, and as its arithmetic needs at its
rate, whichever is longer (roofline.py has the rule). So rates are bounds: programs come near them, not over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bench.calibrate import Machine
from octavo.bench.machines import Described
from octavo.bench.roofline import ModelCost

NEAR = 0.99
"""Of the most tokens a second: a larger batch that adds less is not worth its latency."""
LIMITS = {"memory": "bandwidth", "compute": "arithmetic"}


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of the machine.

    Attributes:
        prompt, output: tokens of each request. chunk: tokens that a step computes at most.
        kv_tokens: that fit beside the weights.
        tpot_limit_ms: of a token while all decode; None: no limit.
    """

    prompt: int
    output: int
    chunk: int
    kv_tokens: int
    tpot_limit_ms: float | None = None

    @property
    def context(self) -> int:
        """Tokens that a decoding request sees, in the middle of its answer."""
        return self.prompt + self.output // 2


@dataclass(frozen=True, slots=True)
class Speed:
    """One batch size at its best: times in ms, rates in tokens a second.

    Attributes:
        fits: its requests fit into memory together.
        limit: what a step of decoding waits for, "bandwidth" or "arithmetic".
        latency: of a request that begins alone and decodes in this batch.
    """

    batch: int
    fits: bool
    ttft: float
    tpot: float
    rate: float
    latency: float
    limit: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What fits, how fast, what limits.

    Attributes:
        speeds: of the batch sizes that were asked for.
        requests: as many as fit together.
        best: the smallest batch within memory and the limit of TPOT that has the most tokens a second (within
            NEAR); None: not even one request is within them.
        held_by: why not more: "memory", "TPOT", or what is saturated, "bandwidth" or "arithmetic".
        ridge: the batch at which decoding turns from bandwidth to arithmetic; None: none that fits does.
    """

    speeds: tuple[Speed, ...]
    requests: int
    best: Speed | None
    held_by: str
    ridge: int | None


def as_machine(described: Described) -> Machine:
    """As the roofline takes it; a multiplication with its addition is two of the maker's operations."""
    rate = described.flops / 2
    return Machine(described.name, 1, described.bandwidth, rate, rate, 1.0)


def speed(cost: ModelCost, machine: Machine, work: Work, batch: int) -> Speed:
    """At one batch size."""
    step = cost.decode(machine, batch, work.context)
    first = cost.prompt(machine, work.prompt, work.chunk).seconds
    tpot = step.seconds
    return Speed(
        batch,
        batch * (work.prompt + work.output) <= work.kv_tokens,
        1e3 * first,
        1e3 * tpot,
        batch / tpot,
        1e3 * (first + (work.output - 1) * tpot),
        LIMITS[step.limit],
    )


def outlook(cost: ModelCost, machine: Machine, work: Work, batches: Sequence[int]) -> Outlook:
    """At several batch sizes, and at the best one."""
    requests = work.kv_tokens // (work.prompt + work.output)
    limit = float("inf") if work.tpot_limit_ms is None else work.tpot_limit_ms

    def at(batch: int) -> Speed:
        return speed(cost, machine, work, batch)

    most = _last(requests, lambda batch: at(batch).tpot <= limit)
    turn = _last(requests, lambda batch: at(batch).limit == "bandwidth") + 1
    best, held_by = None, "memory" if most == requests else "TPOT"
    if most:
        enough = NEAR * at(most).rate
        best = at(_last(most, lambda batch: at(batch).rate < enough) + 1)
        held_by = held_by if best.batch == most else at(most).limit
    every = tuple(at(batch) for batch in batches)
    return Outlook(every, requests, best, held_by, turn if turn <= requests else None)


def _last(end: int, keeps: Callable[[int], bool]) -> int:
    """The largest number from 1 to end that keeps what larger ones only break; 0: none does."""
    kept, broken = 0, end + 1
    while broken - kept > 1:
        middle = (kept + broken) // 2
        kept, broken = (middle, broken) if keeps(middle) else (kept, middle)
    return kept
