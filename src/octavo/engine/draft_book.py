"""DraftBook: what the scheduler asks of drafts, and what an engine without them answers."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.kv_manager import KVManager
from octavo.engine.request import Request, RequestUpdate
from octavo.engine.stats import DraftCounts
from octavo.engine.step_builder import InFlight, StepBuilder
from octavo.engine.step_plan import RowStep, StepResult


class DraftBook:
    """What results propose for the next step (Scheduler, rule 12). This one keeps nothing; Drafts does.

    Attributes:
        waiting: requests of which something is kept. counts: of what was verified.
    """

    def __init__(self) -> None:
        self.waiting: dict[Request, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.counts = DraftCounts()

    def propose(self, request: Request, result: StepResult, row: int) -> None:
        """Keep what a result proposes for a request, of which nothing is in flight."""

    def fits(self, running: Sequence[Request], kv: KVManager, config: SchedulerConfig, budget: int) -> bool:
        """Whether a step of one token for each has room for all that is kept, one row's in free pages."""
        return False

    def join(self, flight: InFlight, kv: KVManager) -> None:
        """Add all that is kept to such a step."""

    def verify(self, step: StepBuilder, kv: KVManager, first: int) -> None:
        """Add what is kept to the rows that draw a token in this step; row `first`, counted round, begins."""

    def confirm(self, request: Request, step: RowStep, emitted: int, kv: KVManager) -> None:
        """The step has verified drafts; the row has drawn so many tokens."""

    def count(self, step: RowStep, emitted: int, update: RequestUpdate) -> None:
        """The same, when the request has taken them, as far as its end."""
