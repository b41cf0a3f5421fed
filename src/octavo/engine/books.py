"""Books: what the engine room knows of pages, and looks up."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.cross_pages import CrossPages
from octavo.engine.disk_tier import DiskTier, PageFile
from octavo.engine.local_pages import LocalPages
from octavo.engine.page_groups import CROSS, LOCAL, SELF, PageGroup, is_known
from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.plan import LocalMoves, PageSave
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request
from octavo.engine.swap import SwapSpace
from octavo.engine.windows import Window, Windows
from octavo.errors import UnsupportedError


class Books:
    """Pool, prefix cache, windows, swap space and disk of one engine. KVManager alone moves pages.

    Attributes:
        cross, windows, locals, disk: None where the model or its configuration has none.
    """

    def __init__(
        self,
        groups: Sequence[PageGroup],
        num_pages: int,
        page_size: int,
        enable_prefix_caching: bool = True,
        swap: SwapSpace | None = None,
        page_file: PageFile | None = None,
    ) -> None:
        for group in groups:
            if not is_known(group):
                raise UnsupportedError(f"page group {group.name!r} is not supported yet", "groups")
        named = {group.name: group for group in groups}
        ensure(SELF.name in named and len(named) == len(groups), "one page group 'self' is needed")
        own, local = named[SELF.name], named.get(LOCAL)
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.cross = CrossPages(self.pool) if CROSS in groups else None
        self.cache = PrefixCache(self.pool, page_size)
        self.caching = enable_prefix_caching
        self.windows: Windows | None = None
        if own.window is not None:
            window = Window(own.window, page_size, own.most_pages)
            self.windows = Windows(window, self.pool, self.cache, self.caching)
        self.locals: LocalPages | None = None
        if local is not None and local.window is not None:
            window = Window(local.window, page_size, local.most_pages)
            self.locals = LocalPages(window, self.pool, local.num_pages, self.caching)
        self.swap = swap or SwapSpace(0, 0.0)
        self.disk = DiskTier(page_file) if page_file is not None and enable_prefix_caching else None

    @property
    def num_available(self) -> int:
        """Pages that could be taken now: free, or evictable."""
        return self.pool.num_free + self.cache.num_evictable

    def usage(self) -> float:
        """Share of the pool held by running requests, 0..1, pages that they could let go of included; of the
        local pages, if that is more."""
        used = 1.0 - self.num_available / self.pool.num_pages
        return used if self.locals is None else max(used, self.locals.usage())

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def cached_tokens(self, request: Request) -> int:
        """How many tokens of the request begin() would find in the cache."""
        if not self.caching or request.scores_prompt:
            return 0
        known, salt = request.token_ids[:-1], request.cache_salt
        if self.locals is None:
            return self.cache.matched_tokens(known, salt)
        return self.locals.usable(self.cache.matched_pages(known, salt)) * self.page_size

    def first_page(self, num_computed: int) -> int:
        """The first page that the token after so many sees."""
        return 0 if self.windows is None else self.windows.window.first_page(num_computed)

    def saves(self) -> tuple[PageSave, ...]:
        """What has been evicted since the last plan and is to be kept on disk."""
        return () if self.disk is None else self.disk.plan()

    def local_moves(self) -> LocalMoves:
        """(StepPlan.local_sources, local_targets) of the plan that is being made."""
        return (None, None) if self.locals is None else self.locals.moves()
