"""Windows: pages that a sliding window has passed, and how they come back to the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.page_group import NO_PAGE, PageGroup
from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding attention: a token at position p sees positions > p - size, itself included.

    Attributes:
        most_pages: that a sequence of any length needs at a time (config.pages_at_a_time).
    """

    size: int
    page_size: int
    most_pages: int

    def first_page(self, num_computed: int) -> int:
        """The first page that a token at position num_computed, or a later one, sees something of."""
        return max(num_computed - self.size + 1, 0) // self.page_size


class Windows(PageGroup):
    """Lets running requests go on without the pages behind their windows. Specification:

        table      [  --  --  | p4 p7 p1 ]      W = 8 tokens, pages of 4, 19 tokens computed
                      released  seen, or still written

    1. A page is behind the window when every token not computed yet, as results have confirmed it,
       sees only later ones: no step in flight reads it, and rejected drafts cannot lead back to it.
    2. Where prefixes are cached a page behind a window is still worth something: it stays until somebody
       needs a page. Then requests let go of theirs, the oldest user first, before anybody is preempted.
       Without a cache they let go as they grow.
    3. What the tree holds is whole from the first token. So a request that lets go leaves the tree: its
       published pages that it still sees become its own again, those behind stay there for others as long
       as nobody needs the room, and it publishes no more. Pages that others use too stay as they are.
    4. Beams keep all their pages: admission has counted them whole.
    """

    def __init__(self, window: Window, pool: PagePool, cache: PrefixCache, caching: bool) -> None:
        self.window = window
        self.running: dict[Request, None] = {}  # in the order in which they began
        self.pinned: Request | None = None  # may release nothing: a sibling uses its last page without a lock
        self._pool, self._cache, self._caching = pool, cache, caching

    def begin(self, request: Request, pages: Sequence[int] = ()) -> None:
        """Release pages behind this request's window from now on. Beams keep theirs (rule 4)."""
        if not request.group.forks:
            self.running[request] = None

    def join(self, member: Request) -> None:
        self.begin(member)

    def leave(self, request: Request) -> None:
        self.running.pop(request, None)

    def pin(self, leader: Request | None) -> None:
        self.pinned = leader

    def alone(self) -> bool:
        """With nothing running, pages of a cached prefix behind the window may be all that is in the way."""
        return not self.running

    def at_most(self, request: Request, missing: int) -> int:
        return missing if request.group.forks else min(missing, self.window.most_pages)

    def first_held(self, num_computed: int) -> int:
        return self.window.first_page(num_computed)

    def make_room(self, count: int, seen: int = 0) -> bool:
        """Release pages behind windows until `count` are free, unless even all of them were too few."""
        if self._available >= count:
            return True
        behind = sum(self._first_page(r) - r.kv.num_released_pages for r in self.running)
        if self._available + behind < count:
            return False
        for request in self.running:
            if self._available >= count:
                return True
            self.let_go(request)
        return self._available >= count

    def grow(self, request: Request) -> None:
        """Release at once where keeping pages brings nothing: without a cache, or outside of the tree."""
        if not self._caching or request.kv.num_released_pages:
            self.let_go(request)

    publish = grow

    def let_go(self, request: Request) -> None:
        """Release the pages behind the request's window, unless other requests use them in the tree."""
        first, released = self._first_page(request), request.kv.num_released_pages
        if first <= released or request not in self.running or request is self.pinned:
            return
        if not self._leave_tree(request, first):
            return
        table = request.kv.page_table
        self._pool.release(table[released:first])
        table[released:first] = [NO_PAGE] * (first - released)
        request.kv.num_released_pages = first

    def _leave_tree(self, request: Request, first: int) -> bool:
        """Unlock the request's path; its pages from number `first` on are no longer the tree's."""
        node, cached = request.kv.cache_node, request.kv.num_cached_pages
        if node is None or cached == 0:
            return True
        if first >= cached:
            self._cache.unlock(node)
        elif not self._cache.withdraw(node, cached - first):
            return False
        request.kv.cache_node, _ = self._cache.match([], request.cache_key)
        self._cache.lock(request.kv.cache_node)
        request.kv.num_cached_pages = 0
        return True

    def _first_page(self, request: Request) -> int:
        return self.window.first_page(request.kv.num_computed_tokens)

    @property
    def _available(self) -> int:
        return self._pool.num_free + self._cache.num_evictable

    def check(self, running: Sequence[Request]) -> None:
        alone = {request for request in running if not request.group.forks}
        ensure(set(self.running) == alone, "a request with a window is lost or has ended")


def group_of(config: SchedulerConfig, pool: PagePool, cache: PrefixCache) -> Windows | None:
    """Where every layer has a window."""
    if config.window is None:
        return None
    window = Window(config.window, config.page_size, config.pages_at_a_time)
    return Windows(window, pool, cache, config.enable_prefix_caching)
