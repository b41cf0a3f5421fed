"""OverlappedRunner: a ModelRunner whose tokens stay on the device: a step is submitted while one runs.

    engine    plan n+1  submit n+1   result n   digest n   plan n+2  submit n+2   result n+1
    device    [ ..... step n ......................][ .......... step n+1 .....................][ step n+2

Step n+1 is gathered before step n's tokens are known here: the device puts them in their places itself
(kernels/draws.py). What is known late has no effect on bits:

- A row that ended in step n is computed once more in n+1; the scheduler drops that token, and whoever
  gets its pages or its row writes them in a later step, which the device runs later.
- A row whose draw depends on its own tokens (penalties, grammars) has its forward launched at once; its
  draw waits here for step n, beside the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.engine.step_plan import Handle, RowStep, SampledToken, StepPlan, StepResult
from octavo.kernels.draws import DeviceSteps, Pending
from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Backend, Inputs, Limits, Ops, Tensor
from octavo.models.registry import Model
from octavo.runtime.model_runner import ModelRunner
from octavo.runtime.page_moves import PageMoves
from octavo.runtime.prompt_logprobs import ByRow
from octavo.runtime.runner import Done
from octavo.runtime.states import RequestStates, gather_batch
from octavo.runtime.vectors import Vector, with_vectors
from octavo.sampling.device import DrawMaker, read
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_batch import SamplingBatch

Vectors = dict[int, Vector | RowError]


def finished(result: StepResult, logprobs: ByRow, vectors: Vectors) -> StepResult:
    """A step's result with what it made beside its tokens."""
    result = replace(result, prompt_logprobs=logprobs) if logprobs else result
    return with_vectors(result, vectors) if vectors else result


class Flight:
    """A step under way. A Handle; whoever needs its tokens first settles it."""

    def __init__(
        self, runner: OverlappedRunner, step_id: int, rows: list[int], pending: Pending, wanted: SamplingBatch
    ) -> None:
        self.step_id, self.rows, self.pending, self.wanted = step_id, rows, pending, wanted
        self.logprobs: ByRow = {}
        self.vectors: Vectors = {}
        self._runner = runner
        self._settled: StepResult | None = None
        self._occupancies = [runner.occupancy(row) for row in rows]

    def settle(self) -> StepResult:
        """Wait for the tokens, and append them to the rows that are still the same requests'."""
        if self._settled is None:
            drawn = read(self.pending.result(), self.wanted)
            now = [self._runner.occupancy(row) for row in self.rows]
            same = [one == other for one, other in zip(now, self._occupancies, strict=True)]
            self._settled = self._runner.keep(self.step_id, self.rows, drawn, same)
        return self._settled

    def result(self) -> StepResult:
        return finished(self.settle(), self.logprobs, self.vectors)


class OverlappedRunner(ModelRunner):
    """Submits steps without waiting for them. Draws that the device lacks are made here, step by step.

    Attributes:
        left_to_host: why draws were left to the host sampler -> in how many steps.
    """

    steps_in_flight = 2

    def __init__(self, *args: Any, steps: DeviceSteps, **more: Any) -> None:
        super().__init__(*args, **more)
        self._steps = steps
        self._maker = DrawMaker()
        self._occupancies: npt.NDArray[np.int64] = np.zeros(len(self._states.length), np.int64)
        self._coming = np.zeros_like(self._occupancies)  # tokens that a row's steps draw, and it lacks here
        self._latest: Flight | None = None
        self.left_to_host: dict[str, int] = {}

    def prepare(self) -> bool:
        self._steps.prepare()
        return True

    def occupancy(self, row: int) -> int:
        """A number that changes when the row goes to another request."""
        return int(self._occupancies[row])

    def submit(self, plan: StepPlan) -> Handle:
        for row in (*plan.freed_rows, *(new.row for new in plan.new_rows)):
            self._occupancies[row] += 1
            self._coming[row] = 0
        steps, vectors = self._prepare(plan)
        for row in vectors:
            self._coming[row] += 1  # what stands for the end of its prompt
        steps, logprobs = self._prompts(steps)
        if not steps:
            return Done(finished(StepResult(plan.step_id, {}, {}), logprobs, vectors))
        return self._launch(plan.step_id, steps, logprobs, vectors)

    def execute(self, plan: StepPlan) -> StepResult:
        return self.submit(plan).result()

    def _launch(self, step_id: int, steps: Sequence[RowStep], logprobs: ByRow, vectors: Vectors) -> Handle:
        batch = gather_batch(steps, self._states, coming=self._coming)
        sources = self._sources(steps, batch)
        rows = [step.row for step in steps if step.sample]
        positions = [step.start + step.count for step in steps if step.sample]
        if self._samplings.follows(rows):  # a grammar must see the last tokens before it can mask
            launched = self._steps.launch(batch, sources, rows)
            self._settle()
            wanted = self._samplings.batch(rows, positions)
            draws = self._maker.draws(wanted)
            why = self._steps.lacks(draws)
        else:
            wanted = self._samplings.batch(rows, positions)
            draws = self._maker.draws(wanted)
            why = self._steps.lacks(draws)
            launched = self._steps.launch(batch, sources, rows, None if why else draws)
        self._coming[rows] += 1
        if why is not None:  # the device cannot draw these: the host does, and the step is not overlapped
            self._settle()
            self.left_to_host[why] = self.left_to_host.get(why, 0) + 1
            drawn = self._sampler.sample(launched.logits(), wanted)
            result = self.keep(step_id, rows, drawn, [True] * len(rows))
            return Done(finished(result, logprobs, vectors))
        flight = Flight(self, step_id, rows, launched.draw(draws), wanted)
        flight.logprobs, flight.vectors = logprobs, vectors
        self._latest = flight
        return flight

    def _sources(self, steps: Sequence[RowStep], batch: ForwardBatch) -> npt.NDArray[np.int32]:
        """[T]: the row whose latest token a place takes, because it is not known here yet; or -1."""
        rows = np.array([step.row for step in steps], np.int32)
        if batch.num_tokens != len(steps):
            rows = np.repeat(rows, np.diff(batch.query_start))
        late = batch.positions >= self._states.length[rows]
        return np.where(late, rows, np.int32(-1))

    def _settle(self) -> None:
        """Know the tokens of the step before. What fails here has failed, and no step after it."""
        latest, self._latest = self._latest, None
        if latest is not None:
            latest.settle()

    def keep(
        self, step_id: int, rows: list[int], drawn: Sequence[SampledToken | RowError], same: list[bool]
    ) -> StepResult:
        """A step's tokens as its result, appended to the rows that are still the same."""
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for row, token, mine in zip(rows, drawn, same, strict=True):
            if isinstance(token, RowError):
                errors[row] = token.message
                continue
            tokens[row] = (token,)
            if mine:  # the row is still this request's
                self._coming[row] -= 1
                self._states.append(row, token.token_id)
                self._samplings.append(row, (token.token_id,))
        return StepResult(step_id, tokens, errors)


def make_runner(
    model: Model,
    backend: Backend,
    moves: PageMoves,
    limits: Limits,
    states: RequestStates,
    eos_token_ids: Sequence[int] = (),
    kinds: tuple[Callable[..., ModelRunner], Callable[..., ModelRunner]] = (ModelRunner, OverlappedRunner),
) -> ModelRunner:
    """A runner whose steps overlap, where the backend draws by itself; else a plain one.

    Args:
        kinds: makes the plain one, and the other.
    """

    def forward(ops: Ops, inputs: Inputs) -> Tensor:
        return model.forward(ops, inputs, moves.kv)

    arguments = model, backend, moves, limits, states, eos_token_ids
    steps = backend.steps(forward, limits, model.vocab_size)
    plain, overlapped = kinds
    return plain(*arguments) if steps is None else overlapped(*arguments, steps=steps)
