"""Decoding: the step that most steps are, in one call of the backend.

After the kernels have streamed a model's weights through the caches, whatever Python then touches comes
from memory, and a step's bookkeeping costs six times what it costs when it is repeated alone. So a step in
which every row computes its last token and draws the next by its own numbers (temperature and the like)
leaves the gathering of the batch, the draw and the appending to native code, which touches little.

Rows with masks, of grammars for instance, are drawn without them first, where the rule is so (Sampler, step
7): constraints are asked about one token, while other rows are still drawn, and only for a row whose token is
refused is the mask computed, and another token drawn from the same logits (Checks). Where top_p or the like
needs the mask before the draw, it comes before a forward that has every core; one that leaves a core idle has
it computed beside, on the long way.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.plan import RowStep, SampledToken, StepResult
from octavo.kernels.ops import RowDecoder
from octavo.sampling.checks import Checks
from octavo.sampling.native import ERRORS
from octavo.sampling.rows import SamplingRows


class Decoding:
    """Knows which steps its decoder can do. The results are those of a replay and a sampler, to the bit."""

    def __init__(self, decoder: RowDecoder, samplings: SamplingRows, masks_before: bool) -> None:
        self._step, self._redraw = decoder.step, decoder.redraw
        self._samplings, self._masks_before = samplings, masks_before

    def run(self, step_id: int, steps: Sequence[RowStep]) -> StepResult | None:
        """Compute, draw and append; None, and nothing done, where the step is another."""
        masked = not self._samplings.plain
        if masked and not self._can_mask:
            return None
        rows: list[int] = []
        starts: list[int] = []
        for step in steps:
            if step.count != 1 or not step.sample:
                return None
            rows.append(step.row)
            starts.append(step.start)
        if not rows:
            return None
        mask, wrong = self._samplings.masks_before(rows) if masked else (None, {})
        if masked:
            checks = Checks(self._samplings, rows)
            drawn = self._step(rows, starts, mask, checks, self._samplings.room)
            wrong |= self._follow(checks, rows, drawn)
        else:
            drawn = self._step(rows, starts)
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for index, row in enumerate(rows):
            token = drawn[index]
            if index in wrong:
                errors[row] = wrong[index]
            elif token >= 0:
                tokens[row] = (SampledToken(token),)
            else:
                errors[row] = ERRORS[token]
        return StepResult(step_id, tokens, errors)

    @property
    def _can_mask(self) -> bool:
        rows = self._samplings
        return rows.only_masked and (self._masks_before or not rows.narrowed)

    def _follow(self, checks: Checks, rows: Sequence[int], drawn: list[int]) -> dict[int, str]:
        """Append what was drawn again, and draw again where that was left; index -> why a row cannot be
        followed."""
        samplings, errors = self._samplings, checks.errors
        if checks.later:
            mask, found = samplings.masks_after([rows[index] for index in checks.later])
            for index, token in zip(checks.later, self._redraw(checks.later, mask), strict=True):
                drawn[index] = token
            errors |= {checks.later[place]: message for place, message in found.items()}
        for index in (*checks.refused, *checks.later):
            if drawn[index] >= 0 and index not in errors:
                samplings.append_masked(rows[index], drawn[index])
        return errors
