"""Whether the engine room's books agree: what tests ask after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from octavo.config import SchedulerConfig
from octavo.engine.books import Books
from octavo.engine.page_pool import ensure
from octavo.engine.prefix_cache import Node
from octavo.engine.request import Request, RequestState
from octavo.engine.windows import GONE


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
        computed, scheduled = request.kv.num_computed_tokens, request.kv.num_scheduled_tokens
        ensure(0 <= computed <= scheduled, "more is computed than was scheduled")
        slots = len(request.kv.page_table) * config.page_size
        ensure(scheduled <= slots, "a page table does not cover what was scheduled")
        total = len(request.token_ids) + request.num_in_flight
        waits_for_beams = request.group is not None
        ensure(computed < total + waits_for_beams, "a running request has nothing to do")
        ensure(total <= request.max_total_tokens, "a request runs beyond its end")
    for request in waiting:
        ensure(not request.kv.page_table and request.row == -1, "a waiting request holds pages or a row")
        ensure(request.kv.cache_node is None, "a waiting request holds a place in the tree")
        ensure(request.kv.cross is None, "a waiting request holds an encoder output")


def check_tables(books: Books, running: Iterable[Request]) -> None:
    """Raise IntegrityError unless references of pages, locks of the tree and tables agree. O(pages)."""
    running = list(running)
    books.pool.check_integrity()
    books.cache.check_integrity()
    nodes = books.cache.nodes()
    if books.locals is not None:
        books.locals.check_integrity(books.pool, running)
    owners = Counter(page for node in nodes for page in node.pages)
    in_tree = set(owners)
    locks: Counter[Node] = Counter()
    if books.cross is not None:
        books.cross.check_integrity([request.kv.cross for request in running])
        owners.update(page for entry in books.cross.entries() for page in entry.pages)
    if books.windows is not None:
        alone = {request for request in running if request.group is None}
        ensure(set(books.windows.running) == alone, "a request with a window is lost or has ended")
    for request in running:
        gone = request.kv.num_gone_pages
        held = request.kv.page_table[gone:]
        ensure(len(set(held)) == len(held), "a table holds a page twice")
        ensure(GONE not in held and set(request.kv.page_table[:gone]) <= {GONE}, "a page is gone, or is not")
        ensure(
            gone <= books.first_page(request.kv.num_computed_tokens),
            "a page is gone that the next token sees",
        )
        owners.update(held)
        walk, path = request.kv.cache_node, list[int]()
        ensure((walk is not None) == books.caching, "a running request has no place in the tree")
        while walk is not None:
            locks[walk] += 1
            path = walk.pages + path
            walk = walk.parent
        ensure(path == request.kv.page_table[: request.kv.num_cached_pages], "locked pages are not in use")
        beyond = request.kv.page_table[request.kv.num_cached_pages :]
        ensure(in_tree.isdisjoint(beyond), "a page of the tree is in use and not locked")
    for page in range(books.pool.num_pages):
        found, counted = owners[page], books.pool.references(page)
        ensure(found == counted, f"page {page}: {counted} references, {found} owners")
    for node in nodes:
        ensure(node.locks == locks[node], f"a node has {node.locks} locks, {locks[node]} users")
