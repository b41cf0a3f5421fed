"""StepBuilder: a StepPlan while the scheduler is still making it."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.cross_pages import CrossEntry
from octavo.engine.plan import NewRow, RowStep, StepPlan
from octavo.engine.request import Request


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step handed out and not yet answered: its plan, whose rows they were, and each one's number
    of preemptions then (if it has grown since, the pages that the step wrote are gone), and the encoder
    outputs that it writes."""

    plan: StepPlan
    requests: tuple[Request, ...]
    preemptions: tuple[int, ...]
    entries: tuple[CrossEntry, ...] = ()


class StepBuilder:
    """Collects the rows of one step and keeps count of the token budget."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.preempted = False
        self.new_rows: list[NewRow] = []
        self.entries: list[CrossEntry] = []
        self._steps: dict[Request, RowStep] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def place(self, request: Request, count: int, pages: tuple[int, ...]) -> None:
        """Let the request compute its next count tokens in this step."""
        start = request.num_scheduled_tokens
        total = len(request.token_ids) + request.num_in_flight
        end = start + count
        sample = end >= total
        drafts: tuple[int, ...] = ()
        if sample:
            request.num_in_flight += 1
            if end > total:
                drafts = request.drafts[: end - total]
                request.verifying = True
            request.drafts = ()  # used, or overtaken by this step
        request.num_scheduled_tokens = end
        self._steps[request] = RowStep(request.row, start, count, pages, sample, drafts)
        self.left -= count

    def can_encode(self, count: int) -> bool:
        """Whether an encoder input of so many tokens, which cannot be cut, may be part of the step.

        It must leave a token for the decoder, or be the first: more room it may never find.
        """
        return count < self.left or not self.entries

    def encode(self, entry: CrossEntry, count: int) -> None:
        """The encoder computes these pages in this step."""
        self.entries.append(entry)
        self.left -= count

    def withdraw(self, request: Request) -> None:
        """Undo place(), if there was one."""
        step = self._steps.pop(request, None)
        if step is None:
            return
        self.left += step.count
        request.num_scheduled_tokens = step.start
        if step.sample:
            request.num_in_flight -= 1
            request.verifying = False

    def build(self, step_id: int, freed_rows: tuple[int, ...]) -> InFlight:
        plan = StepPlan(step_id, freed_rows, tuple(self.new_rows), tuple(self._steps.values()))
        requests = tuple(self._steps)
        preemptions = tuple([r.metrics.num_preemptions for r in requests])
        return InFlight(plan, requests, preemptions, tuple(self.entries))
