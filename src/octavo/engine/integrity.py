"""Whether the engine's state agrees with its page tables: what tests ask after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.page_group import NO_PAGE
from octavo.engine.page_pool import ensure
from octavo.engine.prefix_cache import Node
from octavo.engine.request import Request, RequestState

if TYPE_CHECKING:
    from octavo.engine.kv_manager import KVManager


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
    rows = [row for request in running for row in request.group.rows_of(request)]
    every = sorted(rows + free_rows)
    ensure(every == list(range(config.max_num_seqs)), "rows are lost or given twice")
    ensure(set(freed) <= set(free_rows), "a row in use counts as freed")
    for queue in (running, waiting):
        ensure(queue == sorted(queue, key=lambda request: request.order), "a queue is out of order")
    for request in running:
        ensure(request.state is RequestState.RUNNING, f"{request.state} among the running")
        computed, scheduled = request.kv.num_computed_tokens, request.kv.num_scheduled_tokens
        ensure(0 <= computed <= scheduled, "more is computed than was scheduled")
        slots = len(request.kv.page_table) * config.page_size
        ensure(scheduled <= slots, "a page table does not cover what was scheduled")
        total = len(request.token_ids) + request.num_in_flight
        ensure(computed < total + request.group.forks, "a running request has nothing to do")
        ensure(total <= request.max_total_tokens, "a request runs beyond its end")
    for request in waiting:
        ensure(not request.kv.page_table and request.row == -1, "a waiting request holds pages or a row")
        ensure(request.kv.cache_node is None, "a waiting request holds a place in the tree")
        ensure(request.kv.cross is None, "a waiting request holds an encoder output")


def check_tables(kv: KVManager, running: Iterable[Request]) -> None:
    """Raise IntegrityError unless references of pages, locks of the tree and tables agree. O(pages)."""
    running = list(running)
    kv.pool.check_integrity()
    kv.cache.check_integrity()
    nodes = kv.cache.nodes()
    owners = Counter(page for node in nodes for page in node.pages)
    in_tree = set(owners)
    locks: Counter[Node] = Counter()
    for group in kv.groups:  # pages that groups hold beside tables
        group.check(running)
        owners.update(group.owned())
    for request in running:
        released = request.kv.num_released_pages
        held = request.kv.page_table[released:]
        ensure(len(set(held)) == len(held), "a table holds a page twice")
        whole = NO_PAGE not in held and set(request.kv.page_table[:released]) <= {NO_PAGE}
        ensure(whole, "a page table misses a page, or holds one that was released")
        first = kv.first_held(request.kv.num_computed_tokens)
        ensure(released <= first, "a page is released that the next token sees")
        owners.update(held)
        walk, path = request.kv.cache_node, list[int]()
        ensure((walk is not None) == kv.caching, "a running request has no place in the tree")
        while walk is not None:  # up to the root: each request locks its whole path
            locks[walk] += 1
            path = walk.pages + path
            walk = walk.parent
        ensure(path == request.kv.page_table[: request.kv.num_cached_pages], "locked pages are not in use")
        beyond = request.kv.page_table[request.kv.num_cached_pages :]
        ensure(in_tree.isdisjoint(beyond), "a page of the tree is in use and not locked")
    for page in range(kv.pool.num_pages):
        found, counted = owners[page], kv.pool.references(page)
        ensure(found == counted, f"page {page}: {counted} references, {found} owners")
    for node in nodes:
        ensure(node.locks == locks[node], f"a node has {node.locks} locks, {locks[node]} users")
