"""Runner: StepPlan in, StepResult out. Rows begin and end, one forward, one draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.engine.step_plan import Handle, NewRow, RowStep, SampledToken, StepPlan, StepResult
from octavo.kernels.ops import F32, KVCache, Program
from octavo.runtime.states import RequestStates, gather_batch
from octavo.sampling.sampler import RowError, Sampler
from octavo.sampling.sampling_batch import SamplingBatch
from octavo.sampling.sampling_rows import SamplingRows


@dataclass(slots=True)
class Done:
    """The handle of a step that was executed when it was submitted."""

    step: StepResult

    def result(self) -> StepResult:
        return self.step


class Runner:
    """Owns the rows' states, the pages and the Program of one model: its forward over these pages, captured.
    An engine.step_plan.Executor.

    A step, in order:
    1. Freed rows forget, new rows start.
    2. Page tables grow; pages are copied.
    3. The batch is gathered and the Program replayed: logits [R, vocab].
    4. The sampler draws a token for every row that asked; each is appended to its row.

    A row whose logits are not finite fails alone (StepResult.errors). What some models and some requests need
    beyond that ModelRunner adds (model_runner.py), which is what runs.

    Attributes:
        steps_in_flight: how many steps are worth submitting before the first result.
    """

    steps_in_flight = 1

    def __init__(
        self, program: Program, kv: KVCache, states: RequestStates, samplings: SamplingRows, sampler: Sampler
    ) -> None:
        self._program, self._kv = program, kv
        self._states, self._samplings, self._sampler = states, samplings, sampler

    def submit(self, plan: StepPlan) -> Handle:
        return Done(self.execute(plan))

    def execute(self, plan: StepPlan) -> StepResult:
        self._begin(plan)
        return self._draw(plan.step_id, plan.steps)

    def _begin(self, plan: StepPlan) -> None:
        """1 and 2: all that comes before the step's batch."""
        for row in plan.freed_rows:  # their requests have ended
            self._free(row)
        for new in plan.new_rows:  # requests that enter
            self._start(new)
        for step in plan.steps:
            if step.pages or step.copied_page is not None:  # its page table has grown
                self._states.grow(step)
        self._move(plan)

    def _free(self, row: int) -> None:
        self._samplings.remove(row)

    def _start(self, new: NewRow) -> None:
        self._states.start(new)
        self._samplings.add(
            new.row, new.params, new.seed, new.sample_index, new.token_ids, new.num_prompt_tokens
        )

    def _move(self, plan: StepPlan) -> None:
        if plan.copies:
            self._kv.copy_pages(plan.copies)

    def _draw(self, step_id: int, steps: Sequence[RowStep]) -> StepResult:
        """3 and 4."""
        if not steps:
            return StepResult(step_id, {}, {})
        rows = [s.row for s in steps if s.sample]
        logits, wanted = self._compute(steps, rows, [s.start + s.count for s in steps if s.sample])
        return self._keep(step_id, rows, self._sampler.sample(logits, wanted) if rows else ())

    def _compute(
        self, steps: Sequence[RowStep], rows: list[int], positions: list[int]
    ) -> tuple[F32, SamplingBatch]:
        """The logits of the rows that draw, at these positions, and what these ask of the sampler."""
        logits = self._program.replay(gather_batch(steps, self._states))
        return logits, self._samplings.batch(rows, positions)

    def _keep(self, step_id: int, rows: list[int], drawn: Sequence[SampledToken | RowError]) -> StepResult:
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for row, token in zip(rows, drawn, strict=True):
            if isinstance(token, RowError):
                errors[row] = token.message
            else:
                tokens[row] = (token,)
                self._states.append(row, token.token_id)
                self._samplings.append(row, (token.token_id,))
        return StepResult(step_id, tokens, errors)
