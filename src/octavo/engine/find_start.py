"""Where a waiting request can begin: in the tree, with a leader, in the swap space or on disk."""

from __future__ import annotations

from octavo.engine.books import Books
from octavo.engine.local_pages import LocalPages
from octavo.engine.prefix_cache import Node
from octavo.engine.request import Request
from octavo.engine.start import Start
from octavo.engine.windows import GONE


def find_start(books: Books, request: Request) -> Start:
    """The farthest start: in the tree, or from there on with a leader, in the swap space or on disk."""
    if not books.caching or request.scores_prompt:
        return start_without_tree(books, request)
    return _continued(books, request, *books.cache.match(request.token_ids[:-1], request.cache_salt))


def start_without_tree(books: Books, request: Request) -> Start:
    return _continued(books, request, *find_nothing(books, request))


def find_nothing(books: Books, request: Request) -> tuple[Node | None, list[int]]:
    """The root, and no page."""
    return books.cache.match([], request.cache_salt) if books.caching else (None, [])


def _continued(books: Books, request: Request, node: Node | None, pages: list[int]) -> Start:
    shared, leader = shared_with_leader(books, request), request.leader
    cached = len(pages) if books.locals is None else books.locals.usable(pages)
    if books.locals is not None and leader is not None and not _is_seen(books.locals, pages, leader, shared):
        shared = 0
    in_tree = cached * books.page_size
    slots = request.kv.fetch.slots(cached) if request.kv.fetch is not None else []
    on_disk, swapped = (cached + len(slots)) * books.page_size, request.kv.num_swapped_tokens
    if leader is not None and max(in_tree, on_disk - 1, swapped - 1) < shared:
        if leader.kv.num_gone_pages:  # its table is not the tree's, and has all that is needed
            node, pages = find_nothing(books, request)
        table = leader.kv.page_table[len(pages) : books.pages_for(shared)]
        return Start(node, pages + table, len(pages), shared)
    if cached < len(pages):
        node, pages = books.cache.match(request.token_ids[:in_tree], request.cache_salt)
    if swapped > max(in_tree, on_disk):
        return _copied(
            books, request, Start(node, pages, cached, swapped, request.kv.swapped), books.first_page(swapped)
        )
    if on_disk > in_tree:
        return _copied(books, request, Start(node, pages, cached, on_disk, slots, from_disk=True), cached)
    return Start(node, pages, cached, in_tree)


def _is_seen(local: LocalPages, pages: list[int], leader: Request, shared: int) -> bool:
    """Whether a request could begin with what a leader shares beyond these pages of the tree."""
    held = len(pages) * local.window.page_size
    return shared > held and local.reaches(shared, pages + leader.kv.page_table[len(pages) :])


def _copied(books: Books, request: Request, start: Start, at: int) -> Start:
    """A start whose slots hold page number `at` and later ones."""
    first = books.first_page(start.computed)
    if first > start.cached:  # what the tree holds is all behind the window
        start.node, _ = find_nothing(books, request)
        start.pages, start.cached = [GONE] * first, 0
    start.back = start.back[len(start.pages) - at :]
    return start


def shared_with_leader(books: Books, request: Request) -> int:
    """Tokens that a sibling has computed and still holds: at most all of the prompt but one."""
    leader = request.leader
    if leader is None or not leader.kv.page_table or leader.kv.arriving:
        return 0  # (what is being copied in can be shared with the next step)
    shared = min(leader.kv.num_computed_tokens, request.num_prompt_tokens - 1)
    return shared if leader.kv.num_gone_pages <= books.first_page(shared) else 0
