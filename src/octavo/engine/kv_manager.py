"""KVManager: the only one who allocates KV pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from octavo.config import SchedulerConfig
from octavo.engine.cross_pages import CrossPages
from octavo.engine.disk_tier import DiskTier, Fetch, PageFile
from octavo.engine.integrity import check_tables
from octavo.engine.page_keys import page_keys, root_key
from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.plan import PageSave
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request
from octavo.engine.start import Start, find_start, start_without_tree
from octavo.engine.swap import SwapSpace
from octavo.engine.windows import GONE, Window, Windows
from octavo.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Growth:
    """What a request was given to write into: new pages at the end of its table, and (source,
    destination) of a shared page that it has a copy of now, in the place of the shared one."""

    pages: tuple[int, ...] = ()
    copy: tuple[int, int] | None = None


NO_GROWTH = Growth()


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share page tables.

    "self" is causal self-attention over everything before, "cross" attention over an encoder's output.
    Groups take their pages from one pool: a page serves whichever table it is in.

    Attributes:
        window: tokens that the widest window of these layers sees; None: some layer sees everything.
        most_pages: that a sequence of any length needs at a time then (SchedulerConfig.pages_at_a_time).
    """

    name: str = "self"
    window: int | None = None
    most_pages: int = 0


SELF, CROSS = PageGroup("self"), PageGroup("cross")


class KVManager:
    """Pool, prefix cache and the page tables of running requests.

        request.page_table   [ p3  p0  p8 | p9  p2 ]
                               from cache   its own, or offered to the cache when full
        request.cross.pages  [ p5  p1 ]   whole from the first step on, the same for equal encoder inputs
        references of a page = (1 if in the tree) + tables that hold it

    1. A request writes only into pages that nobody else refers to. What it shares with the tree is
       full, so it never writes there; what it shares with a sibling may end in a partial page, and
       who writes to that first takes a copy (copy-on-write, Kwon et al. 2023, section 4.4).
    2. Only whole pages of computed and verified tokens enter the tree, and only from the one table
       that holds them: any other table with a page of the tree has locked it.
    3. After a full hit at least one token is computed anew, because its logits are needed.
    4. When the pool is empty, pages that only the tree holds are evicted, least recently used first. With a
       file they go to disk (DiskTier), and requests find them there beyond what the tree holds.
    5. With a window, pages behind it are given back (Windows): page_table[:num_gone_pages] are GONE.
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
            if group.name not in (SELF.name, CROSS.name) or (group.window and group.name != SELF.name):
                raise UnsupportedError(f"page group {group.name!r} is not supported yet", "groups")
        own = [group for group in groups if group.name == SELF.name]
        distinct = len({group.name for group in groups}) == len(groups)
        ensure(len(own) == 1 and distinct, "one page group 'self' is needed")
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.cross = CrossPages(self.pool) if CROSS in groups else None
        self.cache = PrefixCache(self.pool, page_size)
        self.caching = enable_prefix_caching
        self.windows: Windows | None = None
        if own[0].window is not None:
            window = Window(own[0].window, page_size, own[0].most_pages)
            self.windows = Windows(window, self.pool, self.cache, self.caching)
        self.swap = swap or SwapSpace(0, 0.0)
        self.disk = DiskTier(page_file) if page_file is not None and enable_prefix_caching else None
        self.cache.spill = None if self.disk is None else self.disk.save

    @property
    def num_available(self) -> int:
        """Pages that could be taken now: free, or evictable."""
        return self.pool.num_free + self.cache.num_evictable

    def usage(self) -> float:
        """Share of the pool held by running requests, 0..1, pages that they could let go of included."""
        return 1.0 - self.num_available / self.pool.num_pages

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def cached_tokens(self, request: Request) -> int:
        """How many tokens of the request begin() would find in the cache."""
        if not self.caching or request.scores_prompt:
            return 0
        return self.cache.matched_tokens(request.token_ids[:-1], request.cache_salt)

    def begin(self, request: Request, reserve: int) -> bool:
        """Give a request the pages of its prefix that the cache or its leader holds. False: not now.

        It begins only if all its known tokens would fit and leave `reserve` pages available, those of
        its encoder's output included, which it shares or takes at once. Then grow() must follow before
        anybody else moves: what a leader shares is not locked in the tree.
        """
        if self._begin(request, find_start(self, request), reserve):
            return True
        # What lies behind the window of a cached prefix must not stand in the way of a lone request.
        alone = self.windows is not None and not self.windows.running
        return alone and self._begin(request, start_without_tree(self, request), reserve)

    def _begin(self, request: Request, start: Start, reserve: int) -> bool:
        held, have = start.held, len(start.pages) if start.back else start.computed // self.page_size
        self.pool.retain(held)
        needed = self._missing(request, have) + self.pages_to_encode(request) + reserve
        self._pin(request.leader)
        if start.node is not None:
            self.cache.lock(start.node)
        if not self._make_room(needed):
            self._pin(None)
            self.pool.release(held)
            if start.node is not None:
                self.cache.unlock(start.node)
            return False
        own = self._take(len(start.back)) or []
        if self.cross is not None:
            of_encoder = self._take(self.pages_to_encode(request)) or ()
            request.cross = self.cross.join(request.cache_salt, of_encoder)
        request.page_table, request.num_gone_pages = start.pages + own, start.pages.count(GONE)
        request.cache_node, request.num_cached_pages = start.node, start.cached
        request.num_computed_tokens = request.num_scheduled_tokens = start.computed
        request.shares_tail, request.arriving = not start.back, bool(start.back)
        pairs = tuple(zip(start.back, own, strict=True))
        if start.from_disk:
            request.load_in = pairs
            self.swap.forget(request)  # (what was fetched is held until the step is made)
        else:
            request.swap_in = pairs
            self.forget(request)
        if self.windows is not None:
            self.windows.begin(request)
        return True

    def _pin(self, leader: Request | None) -> None:
        """Whose tail a sibling takes, from begin() to grow(), which copies it."""
        if self.windows is not None:
            self.windows.pinned = leader

    def _missing(self, request: Request, have: int) -> int:
        """Pages that its known tokens need beyond these. With a window, no more than it needs at a time."""
        missing = self.pages_for(len(request.token_ids)) - have
        if self.windows is None or request.group is not None:
            return missing
        return min(missing, self.windows.window.most_pages)

    def first_page(self, num_computed: int) -> int:
        """The first page that the token after so many sees."""
        return 0 if self.windows is None else self.windows.window.first_page(num_computed)

    def forget(self, request: Request) -> None:
        """What the swap space and the disk hold for a waiting request is not needed (any more)."""
        self.swap.forget(request)
        self._drop_fetch(request)

    def record(self, request: Request) -> None:
        """Count what a request that enters for the first time has found, and where."""
        prompt, size = request.num_prompt_tokens, self.page_size
        found = request.num_cached_pages * size
        loaded = request.num_computed_tokens - found if request.load_in else 0
        request.num_cached_tokens = found + loaded
        self.cache.record(prompt, found)
        if self.disk is not None:
            self.disk.record(prompt - found, loaded)

    def fetched(self, request: Request) -> bool:
        """Whether what the disk holds of the request's prefix, beyond the tree's, is at hand or is nothing.

        The first call begins to read it, and so does one that finds the tree holding less than before.
        """
        if self.disk is None or request.scores_prompt:
            return True
        self.disk.poll()
        first = self.cached_tokens(request) // self.page_size
        if request.fetch is not None:
            if first >= request.fetch.first:
                return request.fetch.ready
            self._drop_fetch(request)
        keys = page_keys(root_key(request.cache_salt), request.token_ids[:-1], self.page_size)
        request.fetch = self.disk.look(keys, first)
        return request.fetch is not None and request.fetch.ready

    def _drop_fetch(self, request: Request) -> None:
        if self.disk is not None:
            self.disk.release(request.fetch)
            request.fetch = None

    def grow(self, request: Request, num_tokens: int) -> Growth | None:
        """Append pages to the table until it covers num_tokens slots, and make those not scheduled
        yet the request's own.

        Returns what is new (possibly nothing), or None if the pool cannot give it: then nothing has
        changed.
        """
        table = request.page_table
        tail = request.num_scheduled_tokens // self.page_size
        shared = request.shares_tail and tail < len(table) and self.pool.references(table[tail]) > 1
        missing = max(self.pages_for(num_tokens) - len(table), 0) + shared
        if missing and self.windows is not None:
            self.windows.tidy(request)
        pages, copy = self._take(missing), None
        self._pin(None)
        if pages is None:
            return None
        request.shares_tail = False
        if missing == 0:
            return NO_GROWTH
        if shared:
            copy = table[tail], pages.pop()
            table[tail] = copy[1]
            self.pool.release(copy[:1])
        table += pages
        return Growth(tuple(pages), copy)

    def _take(self, count: int) -> list[int] | None:
        """Free pages, evicting what only the cache holds; None: there are not so many."""
        if not self._make_room(count):
            return None
        if (short := count - self.pool.num_free) > 0:
            self.cache.evict(short)
        return self.pool.allocate(count)

    def _make_room(self, count: int) -> bool:
        """Whether so many pages are available; those behind windows are, if need be."""
        return self.num_available >= count or (self.windows is not None and self.windows.make_room(count))

    def pages_to_encode(self, request: Request) -> int:
        """Pages that the encoder's output needs, unless an equal input is in use."""
        if self.cross is None or self.cross.find(request.cache_salt) is not None:
            return 0
        return self.pages_for(len(request.encoder_token_ids))

    def publish(self, request: Request) -> None:
        """Offer the pages of a running request that have become full to the cache, to be shared.

        If the tree holds the same tokens already (from somebody who computed them at the same time,
        or because the last token of a full hit had to be computed anew), the request keeps its
        copy to itself: what it locks is always what it uses, so that a lone request can have the
        whole pool.
        """
        if self.windows is not None:
            self.windows.tidy(request)
        node = request.cache_node
        if node is None or (full := self._publishable(request)) <= request.num_cached_pages:
            return
        tokens, pages = self._unpublished(request, full)
        if self.cache.holds_next(node, tokens):
            return
        request.cache_node = end = self.cache.insert(node, tokens, pages)
        if end is not node:
            self.cache.lock(end)
            self.cache.unlock(node)
        request.num_cached_pages = full

    def swap_out(self, request: Request) -> tuple[tuple[int, int], ...]:
        """(page, slot) pairs that save what a request has computed, which is about to lose its pages.

        None: it is not worth it, or there is no room. (Beams come back by way of their prompt, and what
        is pooled needs every token's vector again.)
        """
        if request.group is not None or request.params.pooling is not None:
            return ()
        tokens = request.num_computed_tokens
        pages = request.page_table[self.first_page(tokens) : self.pages_for(tokens)]
        slots = self.swap.take(tokens, len(pages))
        if slots:
            request.swapped, request.num_swapped_tokens, request.swapping = slots, tokens, True
        return tuple(zip(pages, slots, strict=False)) if slots else ()

    def regroup(
        self, members: Sequence[Request], parents: Sequence[Request], gone: Sequence[Request]
    ) -> None:
        """Deal out tables anew: members[i] goes on from what parents[i] holds now, `gone` hold nothing.

        Nothing is copied here: who shares a partial page takes a copy when it grows.
        """
        tables = [list(parent.page_table) for parent in parents]
        places = [(p.cache_node, p.num_cached_pages, p.num_computed_tokens) for p in parents]
        gone_pages = [parent.num_gone_pages for parent in parents]
        for table, (node, _, _), behind in zip(tables, places, gone_pages, strict=True):
            self.pool.retain(table[behind:])
            if node is not None:
                self.cache.lock(node)
        entries = [None if self.cross is None else self.cross.join(p.cache_salt, ()) for p in parents]
        for request in (*members, *gone):
            self.release(request, publish=False)
        for member, entry, behind in zip(members, entries, gone_pages, strict=True):
            member.cross, member.num_gone_pages = entry, behind
            if self.windows is not None:
                self.windows.begin(member)
        for member, table, (node, cached, computed) in zip(members, tables, places, strict=True):
            member.page_table, member.cache_node, member.num_cached_pages = table, node, cached
            member.num_computed_tokens = member.num_scheduled_tokens = computed
            member.shares_tail = True

    def release(self, request: Request, publish: bool = True) -> None:
        """Take back all pages of a request. Full ones stay in the cache unless publish is False."""
        node = request.cache_node
        if node is not None:
            if publish and (full := self._publishable(request)) > request.num_cached_pages:
                self.cache.insert(node, *self._unpublished(request, full))
            self.cache.unlock(node)
        self.pool.release(request.page_table[request.num_gone_pages :])
        if self.windows is not None:
            self.windows.running.pop(request, None)
        if self.cross is not None and request.cross is not None:
            self.cross.leave(request.cross)
        request.page_table, request.cache_node, request.cross = [], None, None
        request.num_cached_pages = request.num_gone_pages = 0
        request.shares_tail = request.arriving = False
        request.num_computed_tokens = request.num_scheduled_tokens = 0

    def _full_pages(self, request: Request) -> int:
        """Pages full of computed tokens. Tokens verified beyond a stop are not part of the sequence."""
        if request.arriving:
            return request.num_cached_pages
        return min(request.num_computed_tokens, len(request.token_ids)) // self.page_size

    def _publishable(self, request: Request) -> int:
        """Leading pages of the table that are in the tree or may enter it."""
        if request.num_gone_pages:
            return 0
        full, done = self._full_pages(request), request.num_cached_pages
        while done < full and self.pool.references(request.page_table[done]) == 1:
            done += 1
        return done

    def _unpublished(self, request: Request, full: int) -> tuple[list[int], list[int]]:
        done = request.num_cached_pages
        tokens = request.token_ids[done * self.page_size : full * self.page_size]
        return tokens, request.page_table[done:full]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes that nobody uses. True: nothing is left."""
        self.cache.evict(self.cache.num_evictable, forget=True)
        if self.disk is not None:
            self.disk.clear()
        return self.cache.num_pages == 0

    def wait_for_disk(self) -> bool:
        """Wait for pages that waiting requests begin with. False: none is being read."""
        return self.disk is not None and self.disk.wait()

    def saves(self) -> tuple[PageSave, ...]:
        """What has been evicted since the last plan and is to be kept on disk."""
        return () if self.disk is None else self.disk.plan()

    def pages_to_keep(self) -> Iterator[tuple[PageSave, ...]]:
        """See DiskTier.keep: all that is cached."""
        if self.disk is not None:
            yield from self.disk.keep(self.cache.contents())

    def check_waiting(self, waiting: Sequence[Request], in_flight: Iterable[Fetch]) -> None:
        """Raise IntegrityError unless slots of swap space and disk are held by these requests and steps."""
        self.swap.check_integrity(waiting)
        if self.disk is not None:
            self.disk.check_integrity([r.fetch for r in waiting if r.fetch is not None] + [*in_flight])

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Raise IntegrityError unless counts, locks and tables agree. O(pages)."""
        check_tables(self, running)


def manager_of(config: SchedulerConfig, page_file: PageFile | None = None) -> KVManager:
    """The manager of a model with these numbers."""
    own = SELF if config.window is None else PageGroup(SELF.name, config.window, config.pages_at_a_time)
    groups = (own, CROSS) if config.max_encoder_len else (own,)
    swap = SwapSpace(config.num_swap_pages, config.swap_page_s)
    caching = config.enable_prefix_caching
    return KVManager(groups, config.num_pages, config.page_size, caching, swap, page_file)
