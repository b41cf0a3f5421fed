"""Where a request can begin: in the tree, with a leader, in the SwapSpace, or in the Tier below the tree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.engine.page_group import NO_PAGE
from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.prefix_cache import Node
from octavo.engine.request import Request

if TYPE_CHECKING:
    from octavo.engine.kv_manager import KVManager
    from octavo.engine.step_plan import PageSave, StepPlan


class SwapSpace:
    """Memory for the pages of preempted requests, in blocks of a page each.

        preempted   pages p4 p7 -> blocks b0 b1   (StepPlan.swaps_out, in the step that preempts it)
        resumed     blocks b0 b1 -> pages p2 p9   (StepPlan.swaps_in, in the step in which it enters)

    1. A page is worth swapping if copying it twice takes less time than computing its tokens again.
       The first is measured when the model is loaded, the second while it runs.
    2. Blocks belong to a waiting request; they are free again when it enters or ends. All pages of a
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

    saves = False  # next_saves() may bring some
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

    def enter(self, step_id: int, requests: Iterable[Request]) -> None:
        """These requests enter with a step, which reads what is here of their prefixes."""

    def executed(self, step_id: int) -> None:
        """A step has been executed, or failed: it reads nothing any more."""

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

    def check_waiting(self, waiting: Sequence[Request], steps: Collection[int]) -> None:
        """Raise IntegrityError unless what is held is held by these requests and steps in flight."""


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
