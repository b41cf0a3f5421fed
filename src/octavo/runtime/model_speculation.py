"""Speculation by a model: what its proposer must be told beyond what others are, and what its drafts cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from octavo.engine.step_plan import StepPlan
from octavo.kernels.forward_batch import ForwardBatch
from octavo.runtime.model_drafts import ModelDrafts
from octavo.runtime.speculation import Speculation
from octavo.runtime.states import RequestStates
from octavo.sampling.sampling_rows import SamplingRows
from octavo.spec.ahead import Ahead
from octavo.spec.costs import COUNTS, CostTable, Load
from octavo.spec.policy import Policy

TIMES = 3
"""So often each forward is computed; the fastest counts, since what disturbs one is not the forward's."""
SECONDS = 0.5
"""So long it takes at most, about."""


class ModelSpeculation(Speculation):
    """A Speculation whose drafts a model draws.

    Args: as Speculation's.
    """

    def __init__(
        self, drafts: ModelDrafts, policy: Policy, most: int, vocab_size: int, rejecting: bool = False
    ) -> None:
        super().__init__(drafts, policy, most, vocab_size, rejecting)
        self.drafts = drafts
        self.activation_bytes = drafts.activation_bytes

    def attach(self, states: RequestStates, samplings: SamplingRows) -> None:
        super().attach(states, samplings)
        self.drafts.attach(states, samplings, self._vocab_size)

    def follow_pages(self, plan: StepPlan) -> None:
        self.drafts.follow(plan)

    def _asked(self, going: Sequence[int], known: Mapping[int, int], load: Load) -> dict[int, int]:
        policy = self.policy
        if not isinstance(policy, Ahead):
            return policy.wanted(going)
        if rows := self.drafts.last_rows:  # what the drafts before have taken
            policy.drafted(rows, self.drafts.last_seconds)
            self.drafts.last_rows = 0
        for caught_up in self.drafts.caught_up:
            policy.caught_up(*caught_up)
        self.drafts.caught_up.clear()
        lacks = {row: known[row] - self.drafts.written(row, known[row]) for row in going}
        policy.foresee(known, lacks, load)
        return policy.wanted(going)


class DraftCosts:
    """Measures forwards that draft, before the first request comes: each row computes its first token, in a
    loose page of its own.

    Args:
        rows: as many as may draft at once.
    """

    def __init__(self, drafts: ModelDrafts, rows: int, page_size: int) -> None:
        self._drafts, self._rows, self._page_size = drafts, rows, page_size

    def table(self) -> CostTable:
        """Seconds by rows."""
        end = time.perf_counter() + SECONDS
        found: dict[int, float] = {}
        for count in COUNTS:
            if count > self._rows or (found and time.perf_counter() > end):
                break
            found[count] = self._seconds(self._batch(count, 1), count)
        return CostTable(found)

    def lack_s(self) -> float:
        """Seconds of each further token of one row: of a page, which a prompt's are no slower than. 0 where a
        page has one token: a step learns what it takes (Ahead.caught_up)."""
        count = min(self._page_size, self._drafts.max_tokens)
        if count <= 1:
            return 0.0
        one, more = (self._seconds(self._batch(1, each), 1) for each in (1, count))
        return max(more - one, 0.0) / (count - 1)

    def _seconds(self, batch: ForwardBatch, rows: int) -> float:
        """Of the fastest of several forwards."""
        best = float("inf")
        for _ in range(TIMES):
            begin = time.perf_counter()
            self._drafts.compute_alone(batch, list(range(rows)))
            best = min(best, time.perf_counter() - begin)
        return best

    def _batch(self, rows: int, each: int) -> ForwardBatch:
        """So many rows, each of which computes its first tokens, at most a page of them, and draws one."""
        at, loose = np.arange(rows, dtype=np.int32), self._drafts.loose
        pages, other = (first + at * loose.each for first in (loose.firsts[0], loose.firsts[-1]))
        inside = np.arange(each, dtype=np.int32)
        slots, windowed = (
            (own[:, None] * self._page_size + inside).ravel().astype(np.int32) for own in (pages, other)
        )
        return ForwardBatch(
            token_ids=np.zeros(rows * each, np.int32),
            positions=np.tile(inside, rows),
            slots=slots,
            query_start=np.arange(rows + 1, dtype=np.int32) * each,
            context_lens=np.full(rows, each, np.int32),
            page_tables=np.ascontiguousarray(pages[:, None], np.int32),
            sampled=(at + 1) * each - 1,
            sliding_tables=np.ascontiguousarray(other[:, None], np.int32),
            sliding_slots=windowed,
        )
