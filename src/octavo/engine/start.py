"""Start: with which pages a request begins, and how far its tokens are computed then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.engine.prefix_cache import Node
from octavo.engine.request import Request
from octavo.engine.windows import GONE

if TYPE_CHECKING:
    from octavo.engine.kv_manager import KVManager
    from octavo.engine.local_pages import LocalPages


@dataclass(slots=True)
class Start:
    """What a waiting request can begin with. Nobody holds any of it yet.

        pages  [ gone | of the tree, of its leader ]  + one page for each slot of `back`
        computed ====================================================>

    Attributes:
        node: where the request is in the tree; the root if nothing of it is used, None without a tree.
        cached: how many of the pages are the tree's.
        back: slots to be copied into pages of its own; from_disk: of the disk, not of the swap space.
    """

    node: Node | None
    pages: list[int]
    cached: int
    computed: int
    back: Sequence[int] = ()
    from_disk: bool = False

    @property
    def held(self) -> list[int]:
        """The pages that others hold too."""
        return self.pages[self.pages.count(GONE) :]


def find_start(kv: KVManager, request: Request) -> Start:
    """The farthest start: in the tree, or from there on with a leader, in the swap space or on disk."""
    if not kv.caching or request.scores_prompt:
        return start_without_tree(kv, request)
    return _continued(kv, request, *kv.cache.match(request.token_ids[:-1], request.cache_salt))


def start_without_tree(kv: KVManager, request: Request) -> Start:
    return _continued(kv, request, *find_nothing(kv, request))


def find_nothing(kv: KVManager, request: Request) -> tuple[Node | None, list[int]]:
    """The root, and no page."""
    return kv.cache.match([], request.cache_salt) if kv.caching else (None, [])


def _continued(kv: KVManager, request: Request, node: Node | None, pages: list[int]) -> Start:
    shared, leader = shared_with_leader(kv, request), request.leader
    cached = len(pages) if kv.locals is None else kv.locals.usable(pages)
    if kv.locals is not None and leader is not None and not _is_seen(kv.locals, pages, leader, shared):
        shared = 0
    in_tree = cached * kv.page_size
    slots = request.fetch.slots(cached) if request.fetch is not None else []
    on_disk, swapped = (cached + len(slots)) * kv.page_size, request.num_swapped_tokens
    if leader is not None and max(in_tree, on_disk - 1, swapped - 1) < shared:
        if leader.num_gone_pages:  # its table is not the tree's, and has all that is needed
            node, pages = find_nothing(kv, request)
        table = leader.page_table[len(pages) : kv.pages_for(shared)]
        return Start(node, pages + table, len(pages), shared)
    if cached < len(pages):
        node, pages = kv.cache.match(request.token_ids[:in_tree], request.cache_salt)
    if swapped > max(in_tree, on_disk):
        return _copied(
            kv, request, Start(node, pages, cached, swapped, request.swapped), kv.first_page(swapped)
        )
    if on_disk > in_tree:
        return _copied(kv, request, Start(node, pages, cached, on_disk, slots, from_disk=True), cached)
    return Start(node, pages, cached, in_tree)


def _is_seen(local: LocalPages, pages: list[int], leader: Request, shared: int) -> bool:
    """Whether a request could begin with what a leader shares beyond these pages of the tree."""
    held = len(pages) * local.window.page_size
    return shared > held and local.reaches(shared, pages + leader.page_table[len(pages) :])


def _copied(kv: KVManager, request: Request, start: Start, at: int) -> Start:
    """A start whose slots hold page number `at` and later ones."""
    first = kv.first_page(start.computed)
    if first > start.cached:  # what the tree holds is all behind the window
        start.node, _ = find_nothing(kv, request)
        start.pages, start.cached = [GONE] * first, 0
    start.back = start.back[len(start.pages) - at :]
    return start


def shared_with_leader(kv: KVManager, request: Request) -> int:
    """Tokens that a sibling has computed and still holds: at most all of the prompt but one."""
    leader = request.leader
    if leader is None or not leader.page_table or leader.arriving:
        return 0  # (what is being copied in can be shared with the next step)
    shared = min(leader.num_computed_tokens, request.num_prompt_tokens - 1)
    return shared if leader.num_gone_pages <= kv.first_page(shared) else 0
