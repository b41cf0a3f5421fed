"""Decoding: the step that most steps are, in one call of the backend.

After the kernels have streamed a model's weights through the caches, whatever Python then touches comes
from memory, and a step's bookkeeping costs six times what it costs when it is repeated alone. So a step in
which every row computes its last token leaves the gathering of the batch to native code, which touches
little, and with it the draws and the appending of all rows that draw by their own numbers (temperature and
the like). What a row asks for beyond them costs that row, and the others nothing:

- Rows with masks, of grammars for instance, are drawn without them first, where the rule is so (Sampler,
  step 7): constraints are asked about one token, while other rows are still drawn, and only for a row whose
  token is refused is the mask computed, and another token drawn from the same logits (Checks).
- Rows with log-probabilities, penalties, biases, or masks that top_p or the like needs before the draw
  are left to the sampler, which draws them from the same step's logits. Their masks come before a forward
  that has every core; one that leaves a core idle has them computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from octavo.engine.plan import RowStep, SampledToken, StepResult
from octavo.kernels.ops import RowDecoder
from octavo.runtime.states import RequestStates
from octavo.sampling.batch import SamplingBatch
from octavo.sampling.checks import Checks
from octavo.sampling.native import ERRORS, NativeSampler
from octavo.sampling.rows import SamplingRows
from octavo.sampling.sampler import RowError


class Decoding:
    """Knows which steps its decoder can do. The results are those of a replay and a sampler, to the bit.

    Args:
        sampler: draws what is left to it. states: its tokens are appended there.
        beside: computes masks beside the forward; None: it has every core.
    """

    def __init__(
        self,
        decoder: RowDecoder,
        sampler: NativeSampler,
        samplings: SamplingRows,
        states: RequestStates,
        beside: Executor | None,
    ) -> None:
        self._decoder, self._sampler, self._samplings = decoder, sampler, samplings
        self._states, self._beside = states, beside

    def run(self, step_id: int, steps: Sequence[RowStep]) -> StepResult | None:
        """Compute, draw and append; None, and nothing done, where the step is another."""
        rows: list[int] = []
        starts: list[int] = []
        for step in steps:
            if step.count != 1 or not step.sample:
                return None
            rows.append(step.row)
            starts.append(step.start)
        if not rows:
            return None
        left, asked = self._samplings.others(rows, starts)
        others: dict[int, SampledToken | RowError] = {}
        if left or asked:
            drawn = self._with_others(rows, starts, left, asked, others)
        else:
            drawn = self._decoder.step(rows, starts)
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for index, row in enumerate(rows):
            token, other = drawn[index], others.get(index)
            if other is None and token >= 0:
                tokens[row] = (SampledToken(token),)
            elif isinstance(other, SampledToken):
                tokens[row] = (other,)
            else:
                errors[row] = ERRORS[token] if other is None else other.message
        return StepResult(step_id, tokens, errors)

    def _with_others(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        left: list[int],
        asked: list[int],
        others: dict[int, SampledToken | RowError],
    ) -> list[int]:
        """The same where some rows are left to the sampler and some are asked about.

        Returns:
            What the decoder drew; of rows that are left, or whose limits cannot be followed, `others` has
            what came of them.
        """
        batch = self._gather([rows[at] for at in left], [starts[at] + 1 for at in left]) if left else None
        checks = Checks(self._samplings, rows)
        if asked:
            drawn = self._decoder.step(rows, starts, left, asked, checks, self._samplings.room)
        else:
            drawn = self._decoder.step(rows, starts, left)
        if batch is not None:
            found = self._sampler.sample(self._decoder.logits(), batch(), left)
            for place, token in zip(left, found, strict=True):
                others[place] = token
                if isinstance(token, SampledToken):
                    self._states.append(rows[place], token.token_id)
                    self._samplings.append(rows[place], (token.token_id,))
        self._follow(checks, rows, drawn)
        others.update((place, RowError(message)) for place, message in checks.errors.items())
        return drawn

    def _gather(self, rows: Sequence[int], positions: Sequence[int]) -> Callable[[], SamplingBatch]:
        """The batch of rows that are left: its masks before a forward that has every core, else beside."""
        if self._beside is not None and self._samplings.constrained(rows):
            return self._beside.submit(self._samplings.batch, rows, positions).result
        batch = self._samplings.batch(rows, positions)
        return lambda: batch

    def _follow(self, checks: Checks, rows: Sequence[int], drawn: list[int]) -> None:
        """Append what was drawn again, and draw again where that was left for later."""
        samplings = self._samplings
        if checks.later:
            mask, found = samplings.masks_after([rows[index] for index in checks.later])
            for index, token in zip(checks.later, self._decoder.redraw(checks.later, mask), strict=True):
                drawn[index] = token
            checks.errors.update((checks.later[place], message) for place, message in found.items())
        for index in (*checks.refused, *checks.later):
            if drawn[index] >= 0 and index not in checks.errors:
                samplings.append_masked(rows[index], drawn[index])
