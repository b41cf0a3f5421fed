"""Apart: rows of a decoding step that ask for more than the numbers in their record.

What such a row asks for slows that row, and no other:

- Rows with a constraint, such as a grammar, are drawn without its mask first (Sampler, step 7). The
  constraint is asked about the drawn token while other rows are drawn. Only if it refuses the token is the
  mask computed, and another token drawn from the same logits (Refusals).
- Rows that ask for log-probabilities alone are drawn by the decoder, which writes these. Those that ask for
  a watermark alone are drawn by it, too, each with the list that follows its last token.
- Rows with penalties or biases, or with a mask that top_p needs before the draw, are left to the sampler,
  which draws from the same logits. Their masks are computed before the forward, or beside it where it
  leaves a core idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from octavo.engine.step_plan import SampledToken
from octavo.kernels.draws import Asked, RowLogprobs, Scored
from octavo.kernels.ops import RowDecoder
from octavo.runtime.states import RequestStates
from octavo.sampling.native import NativeSampler, scored
from octavo.sampling.refusals import Refusals
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_batch import SamplingBatch
from octavo.sampling.sampling_rows import SamplingRows
from octavo.sampling.wishes import OtherRows


class Apart:
    """Runs steps of a decoder in which some rows ask for more than their record.

    Args:
        sampler: draws what is left to it.
        states: its tokens are appended there.
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
        self._scores = RowLogprobs.empty(0, 0)

    def step(
        self, rows: Sequence[int], starts: Sequence[int], others: OtherRows
    ) -> tuple[list[int], dict[int, SampledToken | RowError]]:
        """Compute and draw for all rows of a step.

        Returns:
            The decoder's tokens, and by place what replaces them: the sampler's tokens of rows that were
            left, tokens with log-probabilities, and why a row's constraint cannot be followed.
        """
        left, asked = others.left, None
        batch = self._gather([rows[at] for at in left], [starts[at] + 1 for at in left]) if left else None
        if others.asked:
            refusals = Refusals(self._samplings, rows)
            asked = Asked(others.asked, refusals, self._samplings.row_mask)
        scores = self._logprobs(others)
        lifted = self._samplings.green.lifted(others.marked) if others.marked else None
        drawn = self._decoder.step(rows, starts, left, asked, Scored(others.scored, scores), lifted)
        if lifted is not None:
            self._samplings.green.made()
        results: dict[int, SampledToken | RowError] = {}
        for place in others.marked:
            if drawn[place] >= 0:
                self._samplings.append(rows[place], (drawn[place],))
        for index, place in enumerate(others.scored):
            if drawn[place] >= 0:
                results[place] = scored(drawn[place], index, scores)
        if batch is not None:
            found = self._sampler.sample(self._decoder.logits(), batch(), left)
            for place, token in zip(left, found, strict=True):
                results[place] = token
                if isinstance(token, SampledToken):
                    self._states.append(rows[place], token.token_id)
                    self._samplings.append(rows[place], (token.token_id,))
        if asked is not None:
            self._follow(refusals, rows, drawn)
            results.update((place, RowError(message)) for place, message in refusals.errors.items())
        return drawn, results

    def _logprobs(self, others: OtherRows) -> RowLogprobs:
        """Arrays for this step's log-probabilities: those of the last step have been read."""
        shape = len(others.scored), others.most
        if self._scores.top_tokens.shape != shape:
            self._scores = RowLogprobs.empty(*shape)
        return self._scores

    def _gather(self, rows: Sequence[int], positions: Sequence[int]) -> Callable[[], SamplingBatch]:
        """The batch of rows that are left: its masks before a forward that has every core, else beside."""
        if self._beside is not None and self._samplings.constrained(rows):
            return self._beside.submit(self._samplings.batch, rows, positions).result
        batch = self._samplings.batch(rows, positions)
        return lambda: batch

    def _follow(self, refusals: Refusals, rows: Sequence[int], drawn: list[int]) -> None:
        """Draw rows again whose masks were left for later, and append all tokens that were drawn again."""
        samplings = self._samplings
        if refusals.later:
            mask, found = samplings.masks_after([rows[index] for index in refusals.later])
            for index, token in zip(refusals.later, self._decoder.redraw(refusals.later, mask), strict=True):
                drawn[index] = token
            refusals.errors.update((refusals.later[place], message) for place, message in found.items())
        for index in (*refusals.refused, *refusals.later):
            if drawn[index] >= 0 and index not in refusals.errors:
                samplings.append_masked(rows[index], drawn[index])
