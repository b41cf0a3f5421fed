"""KVManager: the only one who allocates KV pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from octavo.engine.cross_pages import CrossPages
from octavo.engine.disk_tier import DiskTier, Fetch, PageFile
from octavo.engine.integrity import check_tables
from octavo.engine.page_keys import page_keys, root_key
from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.plan import PageSave
from octavo.engine.prefix_cache import Node, PrefixCache
from octavo.engine.request import Request
from octavo.engine.swap import SwapSpace
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
    """

    name: str = "self"


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
            if group not in (SELF, CROSS):
                raise UnsupportedError(f"page group {group.name!r} is not supported yet", "groups")
        ensure(SELF in groups and len(set(groups)) == len(groups), "one page group 'self' is needed")
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.cross = CrossPages(self.pool) if CROSS in groups else None
        self.cache = PrefixCache(self.pool, page_size)
        self.caching = enable_prefix_caching
        self.swap = swap or SwapSpace(0, 0.0)
        self.disk = DiskTier(page_file) if page_file is not None and enable_prefix_caching else None
        self.cache.spill = None if self.disk is None else self.disk.save

    @property
    def num_available(self) -> int:
        """Pages that could be taken now: free, or evictable."""
        return self.pool.num_free + self.cache.num_evictable

    def usage(self) -> float:
        """Share of the pool held by running requests, 0..1."""
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
        node, pages = self._find(request)
        if node is not None:
            self.cache.lock(node)
        cached = len(pages)
        computed = max(cached * self.page_size, self._shared_with_leader(request))
        slots = request.fetch.slots(cached) if request.fetch is not None else []
        on_disk = (cached + len(slots)) * self.page_size
        if request.num_swapped_tokens > max(computed, on_disk):
            back, computed = request.swapped[cached:], request.num_swapped_tokens
            if (pairs := self._begin_copied(request, node, pages, back, computed, reserve)) is not None:
                request.swap_in = pairs
                self.forget(request)
            return pairs is not None
        if on_disk > computed:
            if (pairs := self._begin_copied(request, node, pages, slots, on_disk, reserve)) is not None:
                request.load_in = pairs
                self.swap.forget(request)
            return pairs is not None
        if request.leader is not None:
            pages += request.leader.page_table[cached : self.pages_for(computed)]
        missing = self.pages_for(len(request.token_ids)) - computed // self.page_size
        of_encoder = self.pages_to_encode(request)
        if self.num_available < missing + of_encoder + reserve:
            if node is not None:
                self.cache.unlock(node)
            return False
        self.pool.retain(pages)
        if self.cross is not None:
            request.cross = self.cross.join(request.cache_salt, self._take(of_encoder) or ())
        request.page_table = pages
        request.cache_node = node
        request.num_cached_pages = cached
        request.num_computed_tokens = request.num_scheduled_tokens = computed
        request.shares_tail = True
        self.forget(request)
        return True

    def _begin_copied(
        self,
        request: Request,
        node: Node | None,
        pages: list[int],
        back: Sequence[int],
        computed: int,
        reserve: int,
    ) -> tuple[tuple[int, int], ...] | None:
        """The same for one that finds its tokens up to `computed` in slots of the swap space or the disk,
        beyond the pages that the cache holds. Returns (slot, page) pairs to copy with its first step."""
        cached = len(pages)
        missing = self.pages_for(len(request.token_ids)) - cached
        of_encoder = self.pages_to_encode(request)
        if self.num_available < missing + of_encoder + reserve:
            if node is not None:
                self.cache.unlock(node)
            return None
        self.pool.retain(pages)
        if self.cross is not None:
            request.cross = self.cross.join(request.cache_salt, self._take(of_encoder) or ())
        own = self._take(len(back)) or []
        request.page_table = pages + own
        request.cache_node = node
        request.num_cached_pages = cached
        request.num_computed_tokens = request.num_scheduled_tokens = computed
        request.arriving = True
        return tuple(zip(back, own, strict=True))

    def forget(self, request: Request) -> None:
        """What the swap space and the disk hold for a waiting request is not needed (any more)."""
        self.swap.forget(request)
        self._drop_fetch(request)

    def record(self, request: Request) -> None:
        """Count what a request that enters for the first time has found, and where."""
        prompt, size = request.num_prompt_tokens, self.page_size
        found, loaded = request.num_cached_pages * size, len(request.load_in) * size
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

    def _shared_with_leader(self, request: Request) -> int:
        """Tokens that a sibling has computed and still holds: at most all of the prompt but one."""
        leader = request.leader
        if leader is None or not leader.page_table or leader.arriving:
            return 0  # (what is being copied in can be shared with the next step)
        return min(leader.num_computed_tokens, request.num_prompt_tokens - 1)

    def _find(self, request: Request) -> tuple[Node | None, list[int]]:
        if not self.caching:
            return None, []
        known = [] if request.scores_prompt else request.token_ids[:-1]
        return self.cache.match(known, request.cache_salt)

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
        pages, copy = self._take(missing), None
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
        short = count - self.pool.num_free
        if short > 0:
            if short > self.cache.num_evictable:
                return None
            self.cache.evict(short)
        return self.pool.allocate(count)

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
        node = request.cache_node
        if node is None or (full := self._publishable(request)) <= request.num_cached_pages:
            return
        tokens, pages = self._unpublished(request, full)
        if self.cache.holds_next(node, tokens):
            return
        end = self.cache.insert(node, tokens, pages)
        if end is not node:
            self.cache.lock(end)
            self.cache.unlock(node)
            request.cache_node = end
        request.num_cached_pages = full

    def swap_out(self, request: Request) -> tuple[tuple[int, int], ...]:
        """(page, slot) pairs that save what a request has computed, which is about to lose its pages.

        None: it is not worth it, or there is no room. (Beams come back by way of their prompt, and what
        is pooled needs every token's vector again.)
        """
        if request.group is not None or request.params.pooling is not None:
            return ()
        tokens = request.num_computed_tokens
        pages = request.page_table[: self.pages_for(tokens)]
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
        for table, (node, _, _) in zip(tables, places, strict=True):
            self.pool.retain(table)
            if node is not None:
                self.cache.lock(node)
        entries = [None if self.cross is None else self.cross.join(p.cache_salt, ()) for p in parents]
        for request in (*members, *gone):
            self.release(request, publish=False)
        for member, entry in zip(members, entries, strict=True):
            member.cross = entry
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
        self.pool.release(request.page_table)
        if self.cross is not None and request.cross is not None:
            self.cross.leave(request.cross)
        request.cross = None
        request.page_table = []
        request.cache_node = None
        request.num_cached_pages = 0
        request.shares_tail = request.arriving = False
        request.num_computed_tokens = request.num_scheduled_tokens = 0

    def _full_pages(self, request: Request) -> int:
        """Pages full of computed tokens. Tokens verified beyond a stop are not part of the sequence."""
        if request.arriving:
            return request.num_cached_pages
        return min(request.num_computed_tokens, len(request.token_ids)) // self.page_size

    def _publishable(self, request: Request) -> int:
        """Leading pages of the table that are in the tree or may enter it."""
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
