"""Decoding: the step that most steps are, in one call of the backend.

After the kernels have streamed a model's weights through the caches, whatever Python then touches comes
from memory, and a step's bookkeeping costs six times what it costs when it is repeated alone. So a step in
which every row computes its last token and draws the next by its own numbers (temperature and the like)
leaves the gathering of the batch, the draw and the appending to native code, which touches little. Masks, of
grammars for instance, are computed before, where the forward leaves no core on which it could be done beside.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.plan import RowStep, SampledToken, StepResult
from octavo.kernels.ops import RowDecoder
from octavo.sampling.native import ERRORS
from octavo.sampling.rows import SamplingRows


class Decoding:
    """Knows which steps its decoder can do. The results are those of a replay and a sampler, to the bit."""

    def __init__(self, decoder: RowDecoder, samplings: SamplingRows, masks_before: bool) -> None:
        self._step, self._samplings, self._masks_before = decoder.step, samplings, masks_before

    def run(self, step_id: int, steps: Sequence[RowStep]) -> StepResult | None:
        """Compute, draw and append; None, and nothing done, where the step is another."""
        masked = False
        if not self._samplings.plain:
            if not (self._masks_before and self._samplings.only_masked):
                return None
            masked = True
        rows: list[int] = []
        starts: list[int] = []
        for step in steps:
            if step.count != 1 or not step.sample:
                return None
            rows.append(step.row)
            starts.append(step.start)
        if not rows:
            return None
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        mask, wrong = self._samplings.masks(rows) if masked else (None, {})
        drawn = self._step(rows, starts, mask)
        for index, row in enumerate(rows):
            token = drawn[index]
            if index in wrong:
                errors[row] = wrong[index]
            elif token >= 0:
                tokens[row] = (SampledToken(token),)
                if masked:
                    self._samplings.append(row, (token,))
            else:
                errors[row] = ERRORS[token]
        return StepResult(step_id, tokens, errors)
