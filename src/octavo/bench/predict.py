"""How fast a model is on a machine, and what limits it, without the model's weights.

Bounds   of a machine in three numbers: a step takes at least as long as its bytes need at the bandwidth, and
         as its arithmetic needs at the rate, whichever is longer (roofline.py has the rule). Programs come
         near such rates, not over them.
Timed    of this machine: steps of a stand-in for the model, as they were (stand_in.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.bench.calibrate import Machine
from octavo.bench.machines import Described
from octavo.bench.roofline import Bound, ModelCost
from octavo.bench.stand_in import between

NEAR = 0.99
"""Of the most tokens a second: a larger batch that adds less is not worth its latency."""
LIMITS = {"memory": "bandwidth", "compute": "arithmetic"}
ACTIVATION_BYTES = 2
"""Of a number that devices exchange."""
EXCHANGES = 2
"""Sums over all devices in a layer that they share: after attention, and after the other half (Shoeybi et al.
2019, Megatron-LM, section 3)."""


@dataclass(frozen=True, slots=True)
class Split:
    """A model that devices share by cutting every layer (tensor parallelism).

    Attributes:
        degree: devices. link: bytes a second that each sends while it receives as many.
    """

    degree: int = 1
    link: float = 0.0

    def exchanging(self, cost: ModelCost, tokens: int) -> float:
        """Seconds of a step in which sums of activations are under way, in a ring: of each sum a device sends
        2 (n - 1) / n of its bytes."""
        if self.degree == 1:
            return 0.0
        sums = EXCHANGES * len(cost.attention) * tokens * cost.width * ACTIVATION_BYTES
        return 2 * (self.degree - 1) / self.degree * sums / self.link


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts that a step verifies, whoever proposes them: that takes time too, and is not counted.

    Attributes:
        most: tokens of a draft. accepted: of drafted tokens, the part that the model would have drawn.
    """

    most: int = 0
    accepted: float = 0.0

    @property
    def tokens(self) -> float:
        """That a step gives a sequence: 1 + a + a^2 + ... (Leviathan et al. 2023, equation 1)."""
        return sum(self.accepted**n for n in range(self.most + 1))


class Times(Protocol):
    """What steps take on a machine."""

    def decode(self, batch: int, context: int) -> float:
        """Seconds of a step of batch sequences that see so many tokens each."""
        ...

    def prompt(self, length: int, chunk: int) -> float:
        """Seconds of a prompt and its first token, chunk tokens a step."""
        ...

    def limit(self, batch: int, context: int) -> str:
        """What a step of decoding waits for: "bandwidth" or "arithmetic"."""
        ...

    @property
    def tokens(self) -> float:
        """That a step of decoding gives each sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least times of a machine, or of several that share the model; with drafts, or without."""

    cost: ModelCost
    machine: Machine
    split: Split = Split()
    drafted: Drafted = Drafted()

    @property
    def tokens(self) -> float:
        return self.drafted.tokens

    def decode(self, batch: int, context: int) -> float:
        rows = batch * (1 + self.drafted.most)
        step = self._bound(batch, context).seconds / self.split.degree
        return step + self.split.exchanging(self.cost, rows)

    def prompt(self, length: int, chunk: int) -> float:
        seconds = self.cost.prompt(self.machine, length, chunk).seconds / self.split.degree
        return seconds + self.split.exchanging(self.cost, length)

    def limit(self, batch: int, context: int) -> str:
        return LIMITS[self._bound(batch, context).limit]

    def _bound(self, batch: int, context: int) -> Bound:
        return self.cost.decode(self.machine, batch, context, self.drafted.most)


@dataclass(frozen=True, slots=True)
class Timed:
    """Times that a stand-in took, and between its batches those on the line from one to the next.

    Attributes:
        bounds: they say what a step waits for.
        steps: (batch, seconds of a step) at the context that is asked for; ascending.
        prompt_s: of a prompt of the length that is asked for.
    """

    bounds: Bounds
    steps: tuple[tuple[int, float], ...]
    prompt_s: float

    @property
    def tokens(self) -> float:
        return 1.0

    def decode(self, batch: int, context: int) -> float:
        return between(self.steps, batch)

    def prompt(self, length: int, chunk: int) -> float:
        return self.prompt_s

    def limit(self, batch: int, context: int) -> str:
        return self.bounds.limit(batch, context)


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
    """One batch size: times in ms, rates in tokens a second.

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


def speed(times: Times, work: Work, batch: int) -> Speed:
    """At one batch size."""
    first = times.prompt(work.prompt, work.chunk)
    tpot = times.decode(batch, work.context) / times.tokens
    return Speed(
        batch,
        batch * (work.prompt + work.output) <= work.kv_tokens,
        1e3 * first,
        1e3 * tpot,
        batch / tpot,
        1e3 * (first + (work.output - 1) * tpot),
        times.limit(batch, work.context),
    )


def outlook(times: Times, work: Work, batches: Sequence[int]) -> Outlook:
    """At several batch sizes, and at the best one."""
    requests = work.kv_tokens // (work.prompt + work.output)
    limit = float("inf") if work.tpot_limit_ms is None else work.tpot_limit_ms

    def at(batch: int) -> Speed:
        return speed(times, work, batch)

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
