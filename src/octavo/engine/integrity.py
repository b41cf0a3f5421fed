"""Whether the scheduler's books agree: what tests ask after every step."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo.config import SchedulerConfig
from octavo.engine.page_pool import ensure
from octavo.engine.request import Request, RequestState


def check_queues(
    config: SchedulerConfig,
    running: Sequence[Request],
    waiting: Sequence[Request],
    free_rows: list[int],
    freed: Collection[int],
) -> None:
    """Raise IntegrityError unless rows, queues and tables agree.

    Args:
        freed: free rows that the executor has not been told of.
    """
    rows = [request.row for request in running if request.group is None]
    groups = [r.group for r in running if r.group is not None and r.group.owner is r]
    rows += [row for group in groups for row in group.rows]
    every = sorted(rows + free_rows)
    ensure(every == list(range(config.max_num_seqs)), "rows are lost or given twice")
    ensure(set(freed) <= set(free_rows), "a row in use counts as freed")
    for queue in (running, waiting):
        ensure(queue == sorted(queue, key=lambda request: request.order), "a queue is out of order")
    for request in running:
        ensure(request.state is RequestState.RUNNING, f"{request.state} among the running")
        computed, scheduled = request.num_computed_tokens, request.num_scheduled_tokens
        ensure(0 <= computed <= scheduled, "more is computed than was scheduled")
        slots = len(request.page_table) * config.page_size
        ensure(scheduled <= slots, "a page table does not cover what was scheduled")
        total = len(request.token_ids) + request.num_in_flight
        waits_for_beams = request.group is not None
        ensure(computed < total + waits_for_beams, "a running request has nothing to do")
        ensure(total <= request.max_total_tokens, "a request runs beyond its end")
    for request in waiting:
        ensure(not request.page_table and request.row == -1, "a waiting request holds pages or a row")
        ensure(request.cache_node is None, "a waiting request holds a place in the tree")
        ensure(request.cross is None, "a waiting request holds an encoder output")
