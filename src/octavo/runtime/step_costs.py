"""What steps cost on this machine, measured before the first request comes: a CostTable for the policy.

A lone row computes steps as a runner's steps are, in pages that nobody uses yet: prompts that draw nothing,
steps whose every token is drawn from (drafts to verify), and one token after a long context.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from octavo.engine.step_plan import Executor, NewRow, RowStep, StepPlan
from octavo.params import SamplingParams
from octavo.params.speculative import SpeculativeParams
from octavo.spec.costs import COUNTS, CostTable

ALONE = SamplingParams(temperature=1.0, speculative=SpeculativeParams(k=0))
"""No greedy row: from the first ones a head learns what its inputs usually are (csrc/head_bounds.h). From
rows of zeros it would learn what no text is like, and compute all logits of every step ever after."""
TIMES = 3
"""So often each step is computed; the fastest counts, since what disturbs one is not the step's."""
ROUNDS = 6
"""So often each step of few tokens is computed, one size after the other in each round: what disturbs a
machine often lasts longer than three steps of one size, which then would seem dear beside the others."""
FEW = 17
SECONDS = 1.0
"""So long it takes at most, about: a model whose steps are slow is measured at fewer numbers of tokens."""
FAR = 1024
"""Tokens of the long context."""


class StepCosts:
    """Measures steps of a runner.

    Args:
        page_size, num_pages, num_sliding_pages: of the pages, of which the first are written to.
        most: tokens of a step, all of which may be sampled. max_model_len: tokens of a row.
    """

    def __init__(
        self, runner: Executor, *, page_size: int, num_pages: int, most: int, max_model_len: int,
        num_sliding_pages: int = 0,
    ) -> None:  # fmt: skip
        self._runner, self._page_size, self._sliding = runner, page_size, num_sliding_pages
        self._longest = min(max_model_len, num_pages * page_size)
        self._most, self._step_id = min(most, self._longest - 1), 0
        self._end = time.perf_counter() + SECONDS

    def table(self) -> CostTable:
        """The costs of steps of up to `most` tokens."""
        self._seconds(0, 1, False)  # whatever only a first step does
        drawn: dict[int, float] = {}  # of steps whose every token is drawn from
        tokens: dict[int, float] = {}
        sizes = [count for count in COUNTS if count == 1 or count <= self._most]
        few = [count for count in sizes if count <= FEW]
        for _ in range(ROUNDS):
            for count in self._in_time(few):
                drawn[count] = min(drawn.get(count, float("inf")), self._seconds(0, count, True))
                tokens[count] = min(tokens.get(count, float("inf")), self._seconds(0, count, False))
        for count in self._in_time(sizes[len(few) :]):
            drawn[count] = min(self._seconds(0, count, True) for _ in range(TIMES))
            tokens[count] = min(self._seconds(0, count, False) for _ in range(TIMES))
        sampled = {count: max(drawn[count] - tokens[count], 0.0) for count in tokens}
        # What is drawn from decides; where a prompt's tokens seem to cost more, they do not.
        tokens = {count: min(seconds, drawn[count]) for count, seconds in tokens.items()}
        far = min(FAR, self._longest - 1)
        behind = min(self._seconds(far, 1, False) for _ in range(TIMES)) if far > 1 else tokens[1]
        self._runner.submit(StepPlan(self._step_id, (0,), (), ())).result()
        return CostTable(tokens, sampled, max(behind - tokens[1], 0.0) / max(far, 1))

    def _in_time(self, sizes: Sequence[int]) -> Iterator[int]:
        """The smallest first; one token always, the rest while there is time."""
        for count in sizes:
            if count == 1 or time.perf_counter() < self._end:
                yield count

    def _seconds(self, start: int, count: int, verify: bool) -> float:
        """Of a step of `count` tokens after `start` others. verify: all but the first are drafts."""
        drafts = (0,) * (count - 1) if verify else ()
        known = start + (1 if verify else count)
        pages = tuple(range(-(-(start + count) // self._page_size)))
        sliding = tuple(page % self._sliding for page in pages) if self._sliding else ()
        # (A prompt's last token is not drawn after here, so the row knows one more.)
        new = NewRow(0, "measured", (0,) * (known + (not verify)), 1, ALONE, 0, 0)
        step = RowStep(0, start, count, pages, verify, drafts, sliding_pages=sliding)
        plan = StepPlan(self._step_id, (0,), (new,), (step,))
        self._step_id += 1
        begin = time.perf_counter()
        self._runner.submit(plan).result()
        return time.perf_counter() - begin
