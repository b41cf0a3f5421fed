"""SwapSpace: where the pages of preempted requests may wait, when copying costs less than computing."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.request import Request


class SwapSpace:
    """Slots of a page each, outside of the page pool, and what is known about both costs.

        preempted   pages p4 p7 -> slots s0 s1   (StepPlan.swaps_out, in the step that preempts it)
        resumed     slots s0 s1 -> pages p2 p9   (StepPlan.swaps_in, in the step in which it enters)

    1. A page is worth swapping if copying it twice takes less time than computing its tokens again.
       The first is measured when the model is loaded, the second while it runs.
    2. Slots belong to a waiting request; they are free again when it enters or ends. All pages of a
       plan are read before any is written, so the same plan may give them to somebody else.
    3. If the step that was to fill them fails, the request forgets them and computes its tokens anew.

    Args:
        num_slots: 0: no swapping.
        page_s: seconds that copying a page takes.
    """

    def __init__(self, num_slots: int, page_s: float) -> None:
        self.pool = PagePool(num_slots)
        self._page_s = page_s
        self._token_s = 0.0
        self._weight = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step took so long. Large steps say more about what computing again would cost."""
        if seconds > 0.0 and num_tokens > 0:
            self._weight = 0.9 * self._weight + num_tokens
            self._token_s += (seconds / num_tokens - self._token_s) * num_tokens / self._weight

    def take(self, num_tokens: int, num_pages: int) -> list[int]:
        """Slots for the pages of so many computed tokens; none if it is not worth it or there is no room."""
        costs = 2 * num_pages * self._page_s
        if not 0 < num_pages <= self.pool.num_free or costs > num_tokens * self._token_s:
            return []
        return self.pool.allocate(num_pages)

    def forget(self, request: Request) -> None:
        """The request needs its slots no more."""
        self.pool.release(request.kv.swapped)
        request.kv.swapped, request.kv.num_swapped_tokens, request.kv.swapping = [], 0, False

    def check_integrity(self, waiting: Iterable[Request]) -> None:
        """Raise IntegrityError unless every slot in use is some waiting request's."""
        held = [slot for request in waiting for slot in request.kv.swapped]
        ensure(len(held) == len(set(held)) == self.pool.num_pages - self.pool.num_free, "a slot is lost")
