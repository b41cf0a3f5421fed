"""Turns: how several owners of requests share the rows of an engine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from octavo.engine.request import Request, RequestState


class Turns:
    """Of requests of one priority the next is one of the owner who has the fewest rows.

    Of 8 rows and more no owner gets the last eighth: others need not wait until a long answer ends.

    Args:
        rows: that the engine has.
    """

    def __init__(self, rows: int) -> None:
        self._most = rows - rows // 8

    def offer(self, waiting: Iterable[Request], running: Sequence[Request]) -> Iterator[Request]:
        """The waiting requests in turns; those of one owner keep their order.

        Who is not RUNNING when the next one is asked for has not entered, and is passed over.
        """
        rows = Counter(request.source.owner for request in running)
        queues: dict[str, deque[tuple[int, int, Request]]] = {}
        for place, request in enumerate(waiting):
            queues.setdefault(request.source.owner, deque()).append((request.order[0], place, request))
        ahead = [(queue[0][0], rows[owner], queue[0][1], owner) for owner, queue in queues.items()]
        heapify(ahead)
        while ahead:
            *_, owner = heappop(ahead)
            queue = queues[owner]
            if rows[owner] >= self._most:
                continue
            request = queue.popleft()[2]
            yield request
            rows[owner] += request.state is RequestState.RUNNING
            if queue:
                heappush(ahead, (queue[0][0], rows[owner], queue[0][1], owner))
