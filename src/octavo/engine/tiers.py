"""Where pages are kept outside of the page pool: SwapSpace, and the Tier below the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.request import Request

if TYPE_CHECKING:
    from octavo.engine.disk_tier import Fetch
    from octavo.engine.step_plan import PageSave, StepPlan


class SwapSpace:
    """Memory for the pages of preempted requests, in blocks of a page each.

        preempted   pages p4 p7 -> blocks b0 b1   (StepPlan.swaps_out, in the step that preempts it)
        resumed     blocks b0 b1 -> pages p2 p9   (StepPlan.swaps_in, in the step in which it enters)

    1. A page is worth swapping if copying it twice takes less time than computing its tokens again.
       The first is measured when the model is loaded, the second while it runs.
    2. Slots belong to a waiting request; they are free again when it enters or ends. All pages of a
       plan are read before any is written, so the same plan may give them to somebody else.
    3. If the step that was to fill them fails, the request forgets them and computes its tokens anew.

    Args:
        num_blocks: 0: no swapping.
        page_s: seconds that copying a page takes.
    """

    def __init__(self, num_blocks: int, page_s: float) -> None:
        self.pool = PagePool(num_blocks)
        self._page_s = page_s
        self._token_s = 0.0
        self._weight = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step what computing a token costs. Large steps count for more."""
        if seconds > 0.0 and num_tokens > 0:
            self._weight = 0.9 * self._weight + num_tokens
            self._token_s += (seconds / num_tokens - self._token_s) * num_tokens / self._weight

    def take(self, num_tokens: int, num_pages: int) -> list[int]:
        """Blocks for these pages; none if computing num_tokens again is cheaper, or too few are free."""
        costs = 2 * num_pages * self._page_s
        if not 0 < num_pages <= self.pool.num_free or costs > num_tokens * self._token_s:
            return []
        return self.pool.allocate(num_pages)

    def forget(self, request: Request) -> None:
        """The request needs its blocks no more."""
        self.pool.release(request.kv.swapped)
        request.kv.swapped, request.kv.num_swapped_tokens, request.kv.swapping = [], 0, False

    def check_integrity(self, waiting: Iterable[Request]) -> None:
        """Raise IntegrityError unless every block in use is some waiting request's."""
        held = [block for request in waiting for block in request.kv.swapped]
        ensure(len(held) == len(set(held)) == self.pool.num_pages - self.pool.num_free, "a block is lost")


class Tier:
    """What is below the prefix cache: here nothing. DiskPrefixes is the tier with a file."""

    query_tokens = hit_tokens = 0

    def ready(self, request: Request) -> bool:
        """Whether this tier has read what it holds of a waiting request's prefix, beyond the tree's pages."""
        return True

    def find(self, request: Request, cached: int) -> Sequence[int]:
        """Blocks of the request's pages that follow its first `cached` pages."""
        return ()

    def record(self, queried: int, hit: int) -> None:
        """Count a request's first look-up, in tokens."""

    def forget(self, request: Request) -> None:
        """The request needs nothing of this tier any more."""

    def release(self, fetch: Fetch | None) -> None:
        """The request of this fetch has loaded its pages, or never will."""

    def next_saves(self) -> tuple[PageSave, ...]:
        """What the next plan has to save."""
        return ()

    def abandon(self, saves: Sequence[PageSave]) -> None:
        """The step with these saves failed."""

    def wait(self) -> bool:
        """Wait for pages that waiting requests begin with. False: none is being read."""
        return False

    def clear(self) -> None:
        """Forget everything."""

    def plans_to_keep(self) -> Iterator[StepPlan]:
        """Plans that save all that is cached; whoever takes one executes it before the next."""
        return iter(())

    def close(self) -> None:
        """Let go of what outlives the engine."""

    def check_integrity(self, held: Sequence[Fetch]) -> None:
        """Raise IntegrityError unless exactly these fetches are held."""
