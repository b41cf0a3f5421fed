"""Where a waiting request can begin: in the tree, or beyond with a leader, in the swap space or on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.engine.page_group import NO_PAGE
from octavo.engine.prefix_cache import Node
from octavo.engine.request import Request

if TYPE_CHECKING:
    from octavo.engine.kv_manager import KVManager


@dataclass(slots=True)
class Start:
    """What a waiting request can begin with. None of its pages has been retained for the request yet.

        pages  [ released | of the tree, of its leader ]  + one new page for each block of `back`
        computed ====================================================>

    Attributes:
        node: where the request is in the tree; the root if nothing of it is used, None without a tree.
        cached: how many of the pages are the tree's.
        back: blocks to be copied into pages of its own; from_disk: of the disk, not of the swap space.
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
        return self.pages[self.pages.count(NO_PAGE) :]


def find_start(kv: KVManager, request: Request) -> Start:
    """The farthest start of all that there are."""
    if not kv.caching or request.needs_whole_prompt:
        return start_without_tree(kv, request)
    return _continued(kv, request, *kv.cache.match(request.token_ids[:-1], request.cache_key))


def start_without_tree(kv: KVManager, request: Request) -> Start:
    return _continued(kv, request, *find_nothing(kv, request))


def find_nothing(kv: KVManager, request: Request) -> tuple[Node | None, list[int]]:
    """The root, and no page."""
    return kv.cache.match([], request.cache_key) if kv.caching else (None, [])


def _continued(kv: KVManager, request: Request, node: Node | None, pages: list[int]) -> Start:
    """The start with the most computed tokens: of the tree's (node, pages), a leader's, swap space, disk."""
    cached, shared = kv.usable(pages), shared_with_leader(kv, request, pages)
    in_tree = cached * kv.page_size
    on_disk_blocks = kv.disk.find(request, cached)
    on_disk, swapped = (cached + len(on_disk_blocks)) * kv.page_size, request.kv.num_swapped_tokens
    if max(in_tree, on_disk - 1, swapped - 1) < shared:  # of equal ones the leader's: nothing is copied
        assert request.leader is not None
        leader = request.leader.kv
        if leader.num_released_pages:  # it has left the tree, and its own table covers what is needed
            node, pages = find_nothing(kv, request)
        table = leader.page_table[len(pages) : kv.pages_for(shared)]
        return Start(node, pages + table, len(pages), shared)
    if cached < len(pages):  # a group cannot use the last of them: begin at an earlier node of the tree
        node, pages = kv.cache.match(request.token_ids[:in_tree], request.cache_key)
    start = Start(node, pages, cached, in_tree)
    if swapped > max(in_tree, on_disk):  # preempted, and its pages wait in the swap space
        start.computed, start.back = swapped, request.kv.swapped
        return _copied(kv, request, start, kv.first_held(swapped))
    if on_disk > in_tree:  # the disk tier has fetched pages beyond the tree's
        start.computed, start.back, start.from_disk = on_disk, on_disk_blocks, True
        return _copied(kv, request, start, cached)
    return start


def _copied(kv: KVManager, request: Request, start: Start, at: int) -> Start:
    """A start whose `back` holds page number `at` and later ones: keep what the tree does not have."""
    first = kv.first_held(start.computed)
    if first > start.cached:  # what the tree holds is all behind the window
        start.node, _ = find_nothing(kv, request)
        start.pages, start.cached = [NO_PAGE] * first, 0
    start.back = start.back[len(start.pages) - at :]
    return start


def shared_with_leader(kv: KVManager, request: Request, pages: list[int]) -> int:
    """Tokens of the prompt that the request's leader has computed and holds, without the last one. 0: there
    is no leader, or a request cannot begin with these pages of the tree and the leader's after them."""
    if request.leader is None:
        return 0
    leader = request.leader.kv
    if not leader.page_table or leader.arriving:
        return 0  # (what is being copied in can be shared with the next step)
    shared = min(leader.num_computed_tokens, request.num_prompt_tokens - 1)
    if leader.num_released_pages > kv.first_held(shared):
        return 0
    table = leader.page_table[len(pages) :]
    return shared if all(group.can_share(shared, pages, table) for group in kv.groups) else 0
