"""Draws: what a step's sampled rows ask of a sampler that runs where the logits are.

The words between sampling/device.py, which makes them from a SamplingBatch, and a backend that draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.kernels.batch import ForwardBatch
from octavo.kernels.types import TokenArrays

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Of R rows, in the order of the logits' rows; they stay while the same rows are drawn for.

    Attributes:
        seeds [R] uint64, sample_indices [R] uint32: with the position they key a row's noise.
        inverses [R]: 1 / temperature in f32, at most the largest float; 0: greedy.
        min_p [R], top_p [R], top_k [R]: as sampling.batch.ROW has them.
        penalties [3, R]: repetition, frequency, presence.
        num_logprobs [R]: -1: none are asked for.
    """

    seeds: npt.NDArray[np.uint64]
    sample_indices: npt.NDArray[np.uint32]
    inverses: F32
    min_p: F32
    top_p: F64
    top_k: I32
    penalties: F32
    num_logprobs: I32

    @property
    def greedy(self) -> bool:
        return not self.inverses.any()

    @property
    def narrows(self) -> bool:
        """Whether any row has a top_k or top_p."""
        return bool((self.top_k > 0).any() or (self.top_p < 1).any())

    @property
    def most(self) -> int:
        """The largest of num_logprobs."""
        return int(self.num_logprobs.max(initial=-1))


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """What changes logits before the draw (sampling.batch.SamplingBatch has the meaning of each)."""

    bias: TokenArrays
    banned: TokenArrays
    seen: TokenArrays
    mask: npt.NDArray[np.uint32] | None


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """A step's draws. edits None: no row's logits are changed."""

    numbers: Numbers
    positions: I64
    edits: Edits | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What came of R draws.

    Attributes:
        tokens [R]: a token, or -1: none is allowed, -2: the logits hold NaN, -3: infinity.
        logprobs [R], ranks [R], top_tokens [R, most], top_logprobs [R, most]: where they were asked
            for; top_tokens ends with -1 where there are fewer. None: no row asked.
    """

    tokens: I32
    logprobs: F64 | None = None
    ranks: I32 | None = None
    top_tokens: I32 | None = None
    top_logprobs: F64 | None = None


class Pending(Protocol):
    """Draws under way."""

    def result(self) -> Drawn:
        """Wait for them. May be called again."""
        ...


class Launched(Protocol):
    """A forward under way, whose logits stay where they are."""

    def draw(self, draws: Draws) -> Pending:
        """Draw from its logits when they are there; does not wait. Once, before the next launch."""
        ...

    def logits(self) -> F32:
        """Wait for the logits [R, V]."""
        ...


class DeviceSteps(Protocol):
    """A program whose tokens stay on the device and feed the next step: nothing waits but result().

    Steps run in the order of their launches, each after everything that was launched before.
    """

    def launch(
        self, batch: ForwardBatch, sources: I32, owners: Sequence[int], draws: Draws | None = None
    ) -> Launched:
        """Start a forward.

        Args:
            sources [T]: the row (of the runner's) whose latest drawn token this token is; -1: token_ids
                has it.
            owners [R]: the row that each drawn token belongs to.
            draws: known already: they may become part of the captured program. draw() must be called
                with the same ones.
        """
        ...

    def prepare(self) -> None:
        """Do now, before anybody waits, what the first step would have to do: compile kernels."""
        ...

    def lacks(self, draws: Draws) -> str | None:
        """Why these draws are left to the host, in a few words; None: the device does them."""
        ...
