"""KVManager: the only one who allocates KV pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from octavo.config import SchedulerConfig
from octavo.engine.books import Books
from octavo.engine.disk_prefixes import drop_fetch, save_evicted
from octavo.engine.disk_tier import Fetch, PageFile
from octavo.engine.find_start import find_start, start_without_tree
from octavo.engine.integrity import check_tables
from octavo.engine.page_groups import PageGroup, groups_of
from octavo.engine.prefix_cache import Node
from octavo.engine.request import Request
from octavo.engine.start import Start
from octavo.engine.swap import SwapSpace
from octavo.engine.windows import GONE


@dataclass(frozen=True, slots=True)
class Growth:
    """What a request was given to write into: new pages at the end of its table, and (source,
    destination) of a shared page that it has a copy of now, in the place of the shared one."""

    pages: tuple[int, ...] = ()
    copy: tuple[int, int] | None = None


NO_GROWTH = Growth()


class KVManager(Books):
    """Pool, prefix cache and the page tables of running requests.

        request.kv.page_table   [ p3  p0  p8 | p9  p2 ]
                               from cache   its own, or offered to the cache when full
        request.kv.cross.pages  [ p5  p1 ]   whole from the first step on, the same for equal encoder inputs
        references of a page = (1 if in the tree) + tables that hold it

    1. A request writes only into pages that nobody else refers to. What it shares with the tree is
       full, so it never writes there; what it shares with a sibling may end in a partial page, and
       who writes to that first takes a copy (copy-on-write, Kwon et al. 2023, section 4.4).
    2. Only whole pages of computed and verified tokens enter the tree, and only from the one table
       that holds them: any other table with a page of the tree has locked it.
    3. After a full hit at least one token is computed anew, because its logits are needed.
    4. When the pool is empty, pages that only the tree holds are evicted, least recently used first. With a
       file they go to disk (DiskTier), and requests find them there beyond what the tree holds.
    5. With a window, pages behind it are given back (Windows): page_table[:num_gone_pages] are GONE. Where
       some layers have one, the others' pages stay, and those of these layers are LocalPages.
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
        super().__init__(groups, num_pages, page_size, enable_prefix_caching, swap, page_file)
        self.cache.spill = None if self.disk is None else partial(save_evicted, self)

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
        missing = self._missing(request, have)
        needed = missing + self.pages_to_encode(request) + reserve
        self._pin(request.leader)
        if start.node is not None:
            self.cache.lock(start.node)
        local = self.locals
        if not self._make_room(needed) or not (
            local is None or local.begin(request, start, missing, reserve)
        ):
            self._pin(None)
            self.pool.release(held)
            if start.node is not None:
                self.cache.unlock(start.node)
            return False
        own = self._take(len(start.back), request.kv.num_passed_pages - len(start.pages)) or []
        if self.cross is not None:
            count = self.pages_to_encode(request)
            of_encoder = self._take(count, first_local=count) or ()
            request.kv.cross = self.cross.join(request.cache_salt, of_encoder)
        request.kv.page_table, request.kv.num_gone_pages = start.pages + own, start.pages.count(GONE)
        request.kv.cache_node, request.kv.num_cached_pages = start.node, start.cached
        request.kv.num_computed_tokens = request.kv.num_scheduled_tokens = start.computed
        request.kv.shares_tail, request.kv.arriving = not start.back, bool(start.back)
        pairs = tuple(zip(start.back, own, strict=True))
        if start.from_disk:
            request.kv.load_in = pairs
            self.swap.forget(request)  # (what was fetched is held until the step is made)
        else:
            request.kv.swap_in = pairs
            self.forget(request)
        if local is not None:
            local.write(own[max(request.kv.num_passed_pages - len(start.pages), 0) :])
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

    def forget(self, request: Request) -> None:
        """What the swap space and the disk hold for a waiting request is not needed (any more)."""
        self.swap.forget(request)
        drop_fetch(self, request)

    def record(self, request: Request) -> None:
        """Count what a request that enters for the first time has found, and where."""
        prompt, size = request.num_prompt_tokens, self.page_size
        found = request.kv.num_cached_pages * size
        loaded = request.kv.num_computed_tokens - found if request.kv.load_in else 0
        request.num_cached_tokens = found + loaded
        self.cache.record(prompt, found)
        if self.disk is not None:
            self.disk.record(prompt - found, loaded)

    def grow(self, request: Request, num_tokens: int) -> Growth | None:
        """Append pages to the table until it covers num_tokens slots, and make those not scheduled
        yet the request's own.

        Returns what is new (possibly nothing), or None if the pool cannot give it: then nothing has
        changed.
        """
        table = request.kv.page_table
        tail = request.kv.num_scheduled_tokens // self.page_size
        shared = request.kv.shares_tail and tail < len(table) and self.pool.references(table[tail]) > 1
        missing = max(self.pages_for(num_tokens) - len(table), 0) + shared
        if missing and self.windows is not None:
            self.windows.tidy(request)
        if missing and self.locals is not None:
            self.locals.advance(request)
        pages, copy = self._take(missing), None
        self._pin(None)
        if pages is None:
            return None
        request.kv.shares_tail = False
        if missing == 0:
            return NO_GROWTH
        if shared:
            copy = table[tail], pages.pop()
            table[tail] = copy[1]
            if self.locals is not None:
                self.locals.copy(*copy)
            self.pool.release(copy[:1])
        table += pages
        return Growth(tuple(pages), copy)

    def grow_if_free(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """Append pages to the table as far as it takes to cover num_tokens slots and pages are free.

        Nobody loses anything for them, a cached prefix neither. Returns the new pages.
        """
        missing = self.pages_for(num_tokens) - len(request.kv.page_table)
        free = self.pool.num_free if self.locals is None else min(self.pool.num_free, self.locals.num_free)
        pages = self.pool.allocate(max(min(missing, free), 0))
        if self.locals is not None:
            self.locals.take(pages)
        request.kv.page_table += pages
        return tuple(pages)

    def trim(self, request: Request) -> None:
        """Take back the pages behind what a request has computed: drafts stood there, and were rejected."""
        end = self.pages_for(request.kv.num_computed_tokens)
        surplus = request.kv.page_table[end:]
        if surplus:
            del request.kv.page_table[end:]
            if self.locals is not None:
                self.locals.unsee(surplus)
            self.pool.release(surplus)

    def _take(self, count: int, first_local: int = 0) -> list[int] | None:
        """Free pages, evicting what only the cache holds; None: there are not so many.

        Args:
            first_local: those from here on own local pages, where the model has some.
        """
        first_local = max(first_local, 0)
        if self.locals is not None and not self.locals.make_room(count - first_local):
            return None
        if not self._make_room(count):
            return None
        if (short := count - self.pool.num_free) > 0:
            self.cache.evict(short)
        pages = self.pool.allocate(count)
        if self.locals is not None:
            self.locals.take(pages[first_local:])
        return pages

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
        node = request.kv.cache_node
        if node is None or (full := self._publishable(request)) <= request.kv.num_cached_pages:
            return
        tokens, pages = self._unpublished(request, full)
        if self.cache.holds_next(node, tokens) and not self._replace(node, tokens, pages):
            return
        request.kv.cache_node = end = self.cache.insert(node, tokens, pages)
        if end is not node:
            self.cache.lock(end)
            self.cache.unlock(node)
        request.kv.num_cached_pages = full

    def _replace(self, node: Node, tokens: list[int], pages: list[int]) -> bool:
        """Let the tree hold these pages of a request instead of its own, if more of them have local pages."""
        if self.locals is None:
            return False
        old = self.cache.unused_pages(node, tokens)
        if self.locals.num_whole(pages[: len(old)]) <= self.locals.num_whole(old):
            return False
        self.cache.replace(node, tokens, pages)
        return True

    def swap_out(self, request: Request) -> tuple[tuple[int, int], ...]:
        """(page, slot) pairs that save what a request has computed, which is about to lose its pages.

        None: it is not worth it, or there is no room. (Beams come back by way of their prompt, and what
        is pooled needs every token's vector again.)
        """
        if request.group is not None or request.params.pooling is not None:
            return ()
        tokens = request.kv.num_computed_tokens
        pages = request.kv.page_table[self.first_page(tokens) : self.pages_for(tokens)]
        slots = self.swap.take(tokens, len(pages))
        if slots:
            request.kv.swapped, request.kv.num_swapped_tokens, request.kv.swapping = slots, tokens, True
            if self.locals is not None:
                self.locals.read(pages[self.locals.window.first_page(tokens) :])
        return tuple(zip(pages, slots, strict=False)) if slots else ()

    def regroup(
        self, members: Sequence[Request], parents: Sequence[Request], gone: Sequence[Request]
    ) -> None:
        """Deal out tables anew: members[i] goes on from what parents[i] holds now, `gone` hold nothing.

        Nothing is copied here: who shares a partial page takes a copy when it grows.
        """
        tables = [list(parent.kv.page_table) for parent in parents]
        places = [(p.kv.cache_node, p.kv.num_cached_pages, p.kv.num_computed_tokens) for p in parents]
        behind_pages = [(parent.kv.num_gone_pages, parent.kv.num_passed_pages) for parent in parents]
        for table, (node, _, _), (gone_pages, passed) in zip(tables, places, behind_pages, strict=True):
            self.pool.retain(table[gone_pages:])
            if self.locals is not None:
                self.locals.see(table[passed:])
            if node is not None:
                self.cache.lock(node)
        entries = [None if self.cross is None else self.cross.join(p.cache_salt, ()) for p in parents]
        for request in (*members, *gone):
            self.release(request, publish=False)
        for member, entry, behind in zip(members, entries, behind_pages, strict=True):
            member.kv.cross, (member.kv.num_gone_pages, member.kv.num_passed_pages) = entry, behind
            if self.windows is not None:
                self.windows.begin(member)
            if self.locals is not None:
                self.locals.running[member] = None
        for member, table, (node, cached, computed) in zip(members, tables, places, strict=True):
            member.kv.page_table, member.kv.cache_node, member.kv.num_cached_pages = table, node, cached
            member.kv.num_computed_tokens = member.kv.num_scheduled_tokens = computed
            member.kv.shares_tail = True

    def release(self, request: Request, publish: bool = True) -> None:
        """Take back all pages of a request. Full ones stay in the cache unless publish is False."""
        node = request.kv.cache_node
        if node is not None:
            if publish and (full := self._publishable(request)) > request.kv.num_cached_pages:
                tokens, pages = self._unpublished(request, full)
                self._replace(node, tokens, pages)
                self.cache.insert(node, tokens, pages)
            self.cache.unlock(node)
        if self.locals is not None:
            self.locals.leave(request)
        self.pool.release(request.kv.page_table[request.kv.num_gone_pages :])
        if self.windows is not None:
            self.windows.running.pop(request, None)
        if self.cross is not None and request.kv.cross is not None:
            self.cross.leave(request.kv.cross)
        request.kv.page_table, request.kv.cache_node, request.kv.cross = [], None, None
        request.kv.num_cached_pages = request.kv.num_gone_pages = 0
        request.kv.shares_tail = request.kv.arriving = False
        request.kv.num_computed_tokens = request.kv.num_scheduled_tokens = 0

    def _full_pages(self, request: Request) -> int:
        """Pages full of computed tokens. Tokens verified beyond a stop are not part of the sequence."""
        if request.kv.arriving:
            return request.kv.num_cached_pages
        return min(request.kv.num_computed_tokens, len(request.token_ids)) // self.page_size

    def _publishable(self, request: Request) -> int:
        """Leading pages of the table that are in the tree or may enter it."""
        if request.kv.num_gone_pages:
            return 0
        full, done = self._full_pages(request), request.kv.num_cached_pages
        while done < full and self.pool.references(request.kv.page_table[done]) == 1:
            done += 1
        return done

    def _unpublished(self, request: Request, full: int) -> tuple[list[int], list[int]]:
        done = request.kv.num_cached_pages
        tokens = request.token_ids[done * self.page_size : full * self.page_size]
        return tokens, request.kv.page_table[done:full]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes that nobody uses. True: nothing is left."""
        self.cache.evict(self.cache.num_evictable, forget=True)
        if self.disk is not None:
            self.disk.clear()
        return self.cache.num_pages == 0

    def wait_for_disk(self) -> bool:
        """Wait for pages that waiting requests begin with. False: none is being read."""
        return self.disk is not None and self.disk.wait()

    def check_waiting(self, waiting: Sequence[Request], in_flight: Iterable[Fetch]) -> None:
        """Raise IntegrityError unless slots of swap space and disk are held by these requests and steps."""
        self.swap.check_integrity(waiting)
        if self.disk is not None:
            self.disk.check_integrity([r.kv.fetch for r in waiting if r.kv.fetch is not None] + [*in_flight])

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Raise IntegrityError unless counts, locks and tables agree. O(pages)."""
        check_tables(self, running)


def manager_of(config: SchedulerConfig, page_file: PageFile | None = None) -> KVManager:
    """The manager of a model with these numbers."""
    swap = SwapSpace(config.num_swap_pages, config.swap_page_s)
    caching = config.enable_prefix_caching
    return KVManager(groups_of(config), config.num_pages, config.page_size, caching, swap, page_file)
