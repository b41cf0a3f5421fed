"""Decoding: the step that most steps are, in one call of the backend.

After the kernels have streamed a model's weights through the caches, whatever Python then touches comes
from memory, and a step's bookkeeping costs six times what it costs when it is repeated alone. So a step in
which every row computes its last token leaves the gathering of the batch to native code, which touches
little, and with it the draws and the appending of all rows that draw by their own numbers (temperature and
the like). Rows that ask for more are drawn apart (apart.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.engine.step_plan import RowStep, SampledToken, StepResult
from octavo.kernels.ops import RowDecoder
from octavo.runtime.apart import Apart
from octavo.sampling.native import ERRORS
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_rows import SamplingRows


class Decoding:
    """Knows which steps its decoder can do. The results are those of a replay and a sampler, to the bit.

    Args:
        apart: the same decoder's steps in which some rows ask for more.
    """

    def __init__(self, decoder: RowDecoder, samplings: SamplingRows, apart: Apart) -> None:
        self._decoder, self._samplings, self._apart = decoder, samplings, apart

    def run(self, step_id: int, steps: Sequence[RowStep]) -> StepResult | None:
        """Compute, draw and append; None, and nothing done, where the step is another."""
        rows: list[int] = []
        starts: list[int] = []
        for step in steps:
            if step.count != 1 or not step.sample:  # a prompt, or a part of one: the runner computes it
                return None
            rows.append(step.row)
            starts.append(step.start)
        if not rows:
            return None
        asking = self._samplings.others(rows, starts)
        others: Mapping[int, SampledToken | RowError] = {}
        if asking is None:  # no row asks for more than its record says
            drawn = self._decoder.step(rows, starts)
        else:
            drawn, others = self._apart.step(rows, starts, asking)
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for index, row in enumerate(rows):
            token, other = drawn[index], others.get(index)
            if other is None and token >= 0:  # drawn by the native decoder
                tokens[row] = (SampledToken(token),)
            elif isinstance(other, SampledToken):  # drawn with log-probabilities, penalties or a mask
                tokens[row] = (other,)
            else:
                errors[row] = ERRORS[token] if other is None else other.message
        return StepResult(step_id, tokens, errors)
