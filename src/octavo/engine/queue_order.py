"""QueueOrder: which waiting request may enter next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.engine.kv_manager import KVManager
from octavo.engine.request import Request, RequestState

PREFIX_WINDOW = 128
"""How many of the first waiting requests are compared by cached prefix: each look-up costs time."""


class QueueOrder:
    """The order in which the scheduler offers waiting requests a place.

    1.  By (priority, arrival).
    2.  *Longest prefix first* (policy "lpm"): among the first PREFIX_WINDOW of the most urgent
        priority, preempted ones come first, then those with the longest cached prefix, while it is
        still there; equal ones by arrival.
    3.  *Fair share.* Whoever enters before an older one overtakes it. After fair_share - 1 such
        admissions in a row the oldest is next, whatever its priority, and nobody else until it has
        entered. It is given the most urgent priority present, lest it be preempted for those it
        has waited for. So a request with p older ones before it waits for at most
        fair_share * (p + 1) entries, and under a flood of urgent requests the others keep
        1 / fair_share of the entries.

    Args:
        fair_share: 1: the oldest always, whatever the priorities.
    """

    def __init__(self, policy: str, fair_share: int, kv: KVManager) -> None:
        self._longest_prefix = policy == "lpm" and kv.caching
        self._limit = fair_share - 1
        self._kv = kv
        self._overtaken = 0  # admissions in a row that were not the oldest's

    def offer(self, waiting: Sequence[Request], running: Sequence[Request]) -> Iterator[Request]:
        """The waiting requests in order. Whoever is RUNNING when the next one is asked for has entered.

        Args:
            waiting, running: both in order (priority, arrival); waiting is not changed meanwhile.
        """
        mixed = waiting[0].order[0] != waiting[-1].order[0]
        if not mixed and not self._longest_prefix:
            self._overtaken = 0
            yield from waiting
            return
        for request in self._by_prefix(waiting) if self._longest_prefix else waiting:
            if self._overtaken >= self._limit:
                yield from self._oldest(waiting, running)
            if _entered(request):
                continue  # as the oldest
            yield request
            if _entered(request):
                self._count(request, waiting)

    def _oldest(self, waiting: Sequence[Request], running: Sequence[Request]) -> Iterator[Request]:
        """Offer requests by arrival until one has entered. (Some cannot: they wait for something else.)"""
        most_urgent = min(queue[0].order[0] for queue in (waiting, running) if queue)
        for request in sorted(waiting, key=_arrival):
            if _entered(request):
                continue
            yield request
            if _entered(request):
                request.order = (most_urgent, request.order[1])
                self._overtaken = 0
                return

    def _count(self, request: Request, waiting: Sequence[Request]) -> None:
        """Count the admission of a request, by whether it overtook an older one."""
        arrival = request.order[1]
        older = any(r.order[1] < arrival and not _entered(r) for r in waiting)
        self._overtaken = self._overtaken + 1 if older else 0

    def _by_prefix(self, waiting: Sequence[Request]) -> list[Request]:
        urgent = waiting[0].order[0]
        head = [request for request in waiting[:PREFIX_WINDOW] if request.order[0] == urgent]

        def key(request: Request) -> tuple[bool, int]:
            return request.state is not RequestState.PREEMPTED, -self._kv.cached_tokens(request)

        return [*sorted(head, key=key), *waiting[len(head) :]]


def without(waiting: list[Request], entered: Sequence[Request]) -> list[Request]:
    """The requests that still wait. Usually the first have entered, so a long queue is not walked."""
    first = 0
    while first < len(entered) and _entered(waiting[first]):
        first += 1
    del waiting[:first]
    return waiting if first == len(entered) else [r for r in waiting if not _entered(r)]


def _arrival(request: Request) -> int:
    return request.order[1]


def _entered(request: Request) -> bool:
    return request.state is RequestState.RUNNING
