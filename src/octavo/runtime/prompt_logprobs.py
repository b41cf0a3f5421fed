"""PromptLogprobs: the logprobs of a prompt's own tokens, for requests that ask for them.

A step samples few rows, and the logits' buffer is made for these. A prompt whose logprobs are asked for is
therefore computed in pieces of that size, each a batch of which every token's logits are read:

    the step     [ start ............ num_prompt - 1 | ... end )
    here          pieces of max_sampled tokens         left to the step's own batch

How a prompt is cut does not change a bit of what it computes, so nobody else notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.engine.step_plan import NewRow, RowStep, SampledToken
from octavo.kernels.ops import Program
from octavo.runtime.states import RequestStates, gather_batch
from octavo.sampling.sampler import Sampler

ByRow = dict[int, tuple[int, tuple[SampledToken, ...]]]


class PromptLogprobs:
    """Computes the prompts of the rows whose requests ask for prompt logprobs.

    Args:
        piece: tokens of one batch, all of whose logits fit.

    Attributes:
        rows: row -> (likeliest tokens to report, last position). Who frees a row takes it out.
    """

    def __init__(self, program: Program, piece: int, states: RequestStates, sampler: Sampler) -> None:
        self._program, self._piece, self._states, self._sampler = program, piece, states, sampler
        self.rows: dict[int, tuple[int, int]] = {}

    def add(self, new: NewRow) -> None:
        """A request enters a row. Of its n completions the first one brings the prompt's logprobs."""
        if new.params.prompt_logprobs is not None and new.sample_index == 0:
            self.rows[new.row] = (new.params.prompt_logprobs, new.num_prompt_tokens - 1)

    def run(self, steps: Sequence[RowStep]) -> tuple[Sequence[RowStep], ByRow]:
        """Compute prompts, and the logprobs of their tokens.

        Returns:
            What is left of the steps, and row -> (position of the first token, tokens with their logprobs).
        """
        if not any(step.row in self.rows for step in steps):
            return steps, {}
        left: list[RowStep] = []
        logprobs: ByRow = {}
        for step in steps:
            count, last = self.rows.get(step.row, (0, 0))
            end = min(step.start + step.count, last)
            if end > step.start:
                logprobs[step.row] = (step.start + 1, self._logprobs(step, end, count))
                step = replace(step, start=end, count=step.start + step.count - end, pages=())
            if step.row in self.rows and end == last:
                del self.rows[step.row]  # there is no more of its prompt
            if step.count > 0:
                left.append(step)
        return left, logprobs

    def _logprobs(self, step: RowStep, end: int, count: int) -> tuple[SampledToken, ...]:
        """Compute [step.start, end); each position tells of the token after it."""
        found: list[SampledToken] = []
        for start in range(step.start, end, self._piece):
            piece = RowStep(step.row, start, min(self._piece, end - start), (), False)
            logits = self._program.replay(gather_batch([piece], self._states, every=True))
            following = self._states.tokens[step.row, start + 1 : start + 1 + piece.count].tolist()
            found += self._sampler.score(logits, following, count)
        return tuple(found)
