"""PromptVectors: what a model makes of a prompt as a whole, for requests that want no text.

Rows that are pooled leave the step's own batch for one of theirs, which ends before the head: the
last hidden states, normed, of every token. They are added up in the order of positions, in float64,
so the vector does not depend on chunks or company. Such a row draws nothing; the scheduler gets a
token that stands for the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from octavo.engine.step_plan import NewRow, RowStep, SampledToken, StepResult
from octavo.kernels.ops import Program
from octavo.runtime.states import RequestStates, gather_batch
from octavo.sampling.sampler import RowError

Vector = tuple[float, ...]
END = SampledToken(0)


@dataclass(slots=True)
class _Pool:
    """How far one prompt has come: the sum of its states so far, or the latest one."""

    mean: bool
    count: int = 0
    state: npt.NDArray[np.float64] | None = None

    def add(self, hidden: npt.NDArray[np.float32]) -> None:
        """hidden [tokens, width], in the order of positions."""
        self.count += len(hidden)
        if not self.mean:
            self.state = hidden[-1].astype(np.float64)
            return
        total = np.zeros(hidden.shape[1]) if self.state is None else self.state
        for row in hidden:  # one by one: numpy's own sum would add in pairs, by the chunk's length
            total += row
        self.state = total

    def vector(self) -> npt.NDArray[np.float64]:
        """The pooled states, at the prompt's end."""
        assert self.state is not None, "a step has at least one token"
        return self.state / self.count if self.mean else self.state


class PromptVectors:
    """Knows the rows whose prompts are pooled.

    Args:
        capture: makes the program of hidden states, with its first use; all of a batch's tokens are sampled.

    Attributes:
        rows: row -> how far its prompt has come. Who frees a row takes it out.
    """

    def __init__(self, capture: Callable[[], Program], states: RequestStates) -> None:
        self._capture, self._states = capture, states
        self._program: Program | None = None
        self.rows: dict[int, _Pool] = {}

    def add(self, new: NewRow) -> None:
        """A request enters a row, for the first time or again: its prompt begins anew."""
        if new.params.pooling is not None:
            self.rows[new.row] = _Pool(new.params.pooling == "mean")

    def run(self, steps: Sequence[RowStep]) -> tuple[Sequence[RowStep], dict[int, Vector | RowError]]:
        """Compute the pooled rows.

        Returns:
            The other steps, and per row that has come to its end the vector, or why there is none.
        """
        mine = [step for step in steps if step.row in self.rows]
        if not mine:
            return steps, {}
        if self._program is None:
            self._program = self._capture()
        hidden = self._program.replay(gather_batch(mine, self._states, every=True))
        done: dict[int, Vector | RowError] = {}
        begin = 0
        for step in mine:
            pool = self.rows[step.row]
            pool.add(hidden[begin : begin + step.count])
            begin += step.count
            if step.sample:
                vector = pool.vector()
                finite = bool(np.isfinite(vector).all())
                error = RowError("the model's hidden states are not finite")
                done[step.row] = tuple(vector.tolist()) if finite else error
        return [step for step in steps if step.row not in self.rows], done


def with_vectors(result: StepResult, vectors: dict[int, Vector | RowError]) -> StepResult:
    """The result with the prompts that have been pooled."""
    errors = {row: found.message for row, found in vectors.items() if isinstance(found, RowError)}
    done = {row: found for row, found in vectors.items() if not isinstance(found, RowError)}
    return replace(
        result,
        tokens=result.tokens | dict.fromkeys(done, (END,)),
        errors=result.errors | errors,
        vectors=done,
    )
