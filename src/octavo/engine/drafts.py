"""Drafts: what results propose for the rows' next steps, how much of it a step verifies, and what came of it.

A draft is a chain of tokens, or a tree: parents[i] is the index of token i's parent among them, which comes
before it, and -1 hangs on the row's last known token. () is a chain. The first tokens of a tree are a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.draft_book import DraftBook
from octavo.engine.kv_manager import KVManager
from octavo.engine.request import Request, RequestUpdate
from octavo.engine.step_builder import InFlight, StepBuilder
from octavo.engine.step_plan import RowStep, StepResult

SPARE = 32
"""One page of so many of the pool may be free for drafts when the rest is in use or cached. A cache that is
full leaves no free page, and a row's last page has room for half of its drafts."""


class Drafts(DraftBook):
    """The drafts of running requests. Scheduler, rule 12, says what they may take."""

    def propose(self, request: Request, result: StepResult, row: int) -> None:
        """Keep what a result proposes for a request, of which nothing is in flight."""
        # No token beyond the last one that may be generated is worth computing.
        most = request.max_total_tokens - len(request.token_ids) - 1
        if tokens := result.drafts.get(row, ())[:most]:
            self.waiting[request] = tokens, result.parents.get(row, ())[:most]

    def fits(self, running: Sequence[Request], kv: KVManager, config: SchedulerConfig, budget: int) -> bool:
        left = min(budget, config.max_sampled_rows or budget) - len(running)
        grows = False
        for request, (tokens, _) in self.waiting.items():
            left -= len(tokens)
            end = request.kv.num_scheduled_tokens + 1 + len(tokens)
            missing = kv.pages_for(end) - len(request.kv.page_table)
            if missing > 0:
                # Whose turn it is to take pages, what their groups and what is to be saved before they are
                # written the long way knows.
                if grows or kv.groups or kv.disk.saves or missing > kv.pool.num_free:
                    return False
                grows = True
        return left >= 0

    def join(self, flight: InFlight, kv: KVManager) -> None:
        for place, request in enumerate(flight.requests):
            if (draft := self.waiting.get(request)) is None:
                continue
            step = flight.plan.steps[place]
            step.drafts, step.parents = draft
            step.count += len(step.drafts)
            end = request.kv.num_scheduled_tokens + len(step.drafts)
            request.kv.num_scheduled_tokens = end
            if end > len(request.kv.page_table) * kv.page_size:
                step.pages = kv.grow_if_free(request, end)
        self.waiting.clear()

    def verify(self, step: StepBuilder, kv: KVManager, first: int) -> None:
        """Add drafts to the rows that draw a token in this step, as far as there is room for them.

        Args:
            first: the row with this number, counted round, is the first in turn.
        """
        drafted = [(request, draft) for request, draft in self.waiting.items() if request in step]
        self.waiting.clear()
        first %= max(len(drafted), 1)
        drafted = drafted[first:] + drafted[:first]
        wanted, left = [len(tokens) for _, (tokens, _) in drafted], step.left_for_drafts
        counts = wanted if sum(wanted) <= left else in_turns(wanted, left)
        for (request, (tokens, parents)), count in zip(drafted, counts, strict=True):
            known = request.kv.num_scheduled_tokens
            pages = kv.grow_if_free(request, known + count)
            fitting = min(count, len(request.kv.page_table) * kv.page_size - known)
            if fitting > 0:
                step.verify(request, tokens[:fitting], parents[:fitting], pages)

    def confirm(self, request: Request, step: RowStep, emitted: int, kv: KVManager) -> None:
        """The keys and values of a step's tokens are written; those of rejected drafts do not count.

        Args:
            emitted: tokens that the row has drawn: those accepted, and one more.
        """
        drafted, accepted = len(step.drafts), emitted - 1
        request.kv.num_computed_tokens = step.start + step.count - drafted + accepted
        request.kv.num_scheduled_tokens = request.kv.num_computed_tokens
        kv.trim(request)

    def count(self, step: RowStep, emitted: int, update: RequestUpdate) -> None:
        # Behind the token that ended the request nothing was taken: it was drafted in vain.
        accepted = min(emitted - 1, len(update.tokens))
        self.counts.add(len(step.drafts), accepted)
        update.drafted, update.accepted = len(step.drafts), accepted


def in_turns(wanted: Sequence[int], total: int) -> list[int]:
    """Shares of a total, given out one at a time in turn; no share is larger than what is wanted."""
    given, turn = [0] * len(wanted), [i for i, most in enumerate(wanted) if most > 0]
    while total > 0 and turn:
        for i in turn[:total]:
            given[i] += 1
        total -= len(turn)
        turn = [i for i in turn if given[i] < wanted[i]]
    return given
