"""KVManager: the only one who allocates KV pages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.integrity import check_tables
from octavo.engine.page_group import NO_PAGE, AdmitStatus, groups_of
from octavo.engine.page_pool import PagePool
from octavo.engine.prefix_cache import Node, PrefixCache
from octavo.engine.request import KVState, Request
from octavo.engine.sources import Start, SwapSpace, Tier, find_start, start_without_tree

if TYPE_CHECKING:
    from octavo.engine.step_builder import StepBuilder


@dataclass(frozen=True, slots=True)
class Growth:
    """Pages that grow() gave a request to write into: new ones at the end of its table, and as `copy`
    (source, destination) where its last page was shared: the table holds the destination now."""

    pages: tuple[int, ...] = ()
    copy: tuple[int, int] | None = None


NO_GROWTH = Growth()


class KVManager:
    """Pool, prefix cache and the page tables of running requests.

        request.kv.page_table   [ p3  p0  p8 | p9  p2 ]
                                  from cache   its own, or offered to the cache when full
        references of a page = (1 if in the tree) + tables that hold it + those of groups (PageGroup.owned)

    1. A request writes only into pages that nobody else refers to. What it shares with the tree is
       full, so it never writes there; what it shares with a sibling may end in a partial page, and
       who writes to that first takes a copy (copy-on-write, Kwon et al. 2023, section 4.4).
    2. Only whole pages of computed and verified tokens enter the tree, and only from the one table
       that holds them: any other table with a page of the tree has locked it.
    3. After a full hit at least one token is computed anew, because its logits are needed.
    4. When the pool is empty, pages that only the tree holds are evicted, least recently used first. With a
       tier below the tree they go there, and requests find them there beyond what the tree holds.
    5. What some layers ask for beyond that, their groups say, which are told of all that happens to pages:
       windows that let pages go (page_table[:num_released_pages] are NO_PAGE then), sliding pages, and
       encoder outputs.

    Args:
        below: makes the tier below the tree (disk_prefixes.manager_of).

    Attributes:
        groups: nobody for layers that see everything. disk: the tier below the tree, or Tier itself.
        spare: pages that are free, as far as evictions can make them so, when pages have been taken (Drafts).
    """

    def __init__(self, config: SchedulerConfig, below: Callable[[KVManager], Tier] | None = None) -> None:
        self.page_size = config.page_size
        self.pool = PagePool(config.num_pages)
        self.cache = PrefixCache(self.pool, config.page_size)
        self.caching, self.spare = config.enable_prefix_caching, 0
        self.groups = groups_of(config, self.pool, self.cache)
        self.swap = SwapSpace(config.num_swap_pages, config.swap_page_s)
        self.disk = below(self) if below and self.caching else Tier()

    # --- views ------------------------------------------------------------------------------------

    @property
    def num_available(self) -> int:
        """Pages that could be taken now: free, or evictable."""
        return self.pool.num_free + self.cache.num_evictable

    def usage(self) -> float:
        """Share of the pool held by running requests, 0..1, pages that they could let go of included; of a
        group's own pages, if that is more."""
        return max([1.0 - self.num_available / self.pool.num_pages, *(g.usage() for g in self.groups)])

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def usable(self, pages: Sequence[int]) -> int:
        """After how many of a cached prefix's pages a request can begin."""
        count = len(pages)
        for group in self.groups:
            count = group.usable(pages[:count])
        return count

    def whole(self, pages: Sequence[int]) -> Sequence[int]:
        """The first of consecutive pages, as far as they are worth keeping on disk."""
        for group in self.groups:
            pages = group.whole(pages)
        return pages

    def first_held(self, num_computed: int) -> int:
        """The first page that a request holds of so many computed tokens, at least."""
        return max([0, *(group.first_held(num_computed) for group in self.groups)])

    def cached_tokens(self, request: Request) -> int:
        """How many tokens of the request begin() would find in the cache."""
        if not self.caching or request.needs_whole_prompt:
            return 0
        pages = self.cache.matched_pages(request.token_ids[:-1], request.cache_key)
        return self.usable(pages) * self.page_size

    # --- requests ---------------------------------------------------------------------------------

    def admit_status(self, request: Request, step: StepBuilder) -> AdmitStatus:
        """Whether a waiting request may enter a step: by its prefix, which may have to be read from disk, and
        by what the groups say."""
        if not self.disk.ready(request):
            return AdmitStatus.LATER
        for group in self.groups:
            if (status := group.admit_status(request, step)) is not AdmitStatus.NOW:
                return status
        return AdmitStatus.NOW

    def begin(self, request: Request, reserve: int) -> bool:
        """Give a request the pages of its prefix that the cache or its leader holds. False: not now.

        It begins only if all its known tokens would fit and leave `reserve` pages available, those of
        its encoder's output included, which it shares or takes at once. Then grow() must follow before
        anybody else moves: what a leader shares is not locked in the tree.
        """
        if self._begin(request, find_start(self, request), reserve):
            return True
        alone = any(group.alone() for group in self.groups)
        return alone and self._begin(request, start_without_tree(self, request), reserve)

    def _begin(self, request: Request, start: Start, reserve: int) -> bool:
        held, have = start.held, len(start.pages) if start.back else start.computed // self.page_size
        self.pool.retain(held)  # hold what is shared before room is made
        missing = self.pages_for(len(request.token_ids)) - have
        for group in self.groups:
            missing = group.at_most(request, missing)
        needed = missing + self.needed_beside(request) + reserve
        self._pin(request.leader)
        if start.node is not None:
            self.cache.lock(start.node)
        room = self._make_room(needed, 0)  # may evict and release, nothing that is held now
        if not room or not all(g.admit(request, start, missing, reserve) for g in self.groups):  # undo
            self._pin(None)
            self.pool.release(held)
            if start.node is not None:
                self.cache.unlock(start.node)
            return False
        kv = request.kv
        unseen = max(kv.num_unseen_pages - len(start.pages), 0)
        own = self._take(len(start.back), unseen) or []  # pages to copy into, from disk or swap space
        kv.page_table, kv.num_released_pages = start.pages + own, start.pages.count(NO_PAGE)
        kv.cache_node, kv.num_cached_pages = start.node, start.cached
        kv.num_computed_tokens = kv.num_scheduled_tokens = start.computed
        kv.shares_tail, kv.arriving = not start.back, bool(start.back)
        self._arrive(request, start, own)
        for group in self.groups:
            count = group.need(request)
            group.begin(request, self._take(count, count) or ())
            group.arrive(own[unseen:])
        return True

    def _arrive(self, request: Request, start: Start, own: list[int]) -> None:
        """Have the first step copy what begins on disk or in the swap space into the request's own pages."""
        pairs = tuple(zip(start.back, own, strict=True))
        if start.from_disk:
            request.kv.load_in = pairs
            self.swap.forget(request)  # (what was fetched is held until the step is made)
        else:
            request.kv.swap_in = pairs
            self.forget(request)

    def needed_beside(self, request: Request) -> int:
        """Pages that it takes when it begins, beside those of its table."""
        return sum(group.need(request) for group in self.groups)

    def _pin(self, leader: Request | None) -> None:
        """From begin() to grow() no group may release pages of this leader: grow() copies its last page."""
        for group in self.groups:
            group.pin(leader)

    def forget(self, request: Request) -> None:
        """What the swap space and the disk hold for a waiting request is not needed (any more)."""
        self.swap.forget(request)
        self.disk.forget(request)

    def record(self, request: Request) -> None:
        """Count what a request that enters for the first time has found, and where."""
        known = len(request.token_ids)  # the prompt, and what was generated elsewhere
        found = request.kv.num_cached_pages * self.page_size
        loaded = request.kv.num_computed_tokens - found if request.kv.load_in else 0
        request.num_cached_tokens = min(found + loaded, request.num_prompt_tokens)
        self.cache.record(known, found)
        self.disk.record(known - found, loaded)

    def grow(self, request: Request, num_tokens: int) -> Growth | None:
        """Append pages to the table until it covers num_tokens slots, and make those not scheduled
        yet the request's own.

        Returns what is new (possibly nothing), or None, and changes nothing, if the pool cannot give it.
        """
        kv = request.kv
        table, tail = kv.page_table, kv.num_scheduled_tokens // self.page_size
        shared = kv.shares_tail and tail < len(table) and self.pool.references(table[tail]) > 1
        missing = max(self.pages_for(num_tokens) - len(table), 0) + shared
        for group in self.groups if missing else ():
            group.grow(request)
        pages, copy = self._take(missing), None
        self._pin(None)
        if pages is None:
            return None
        kv.shares_tail = False
        if missing == 0:
            return NO_GROWTH
        if shared:
            copy = table[tail], pages.pop()
            table[tail] = copy[1]
            for group in self.groups:
                group.copy(*copy)
            self.pool.release(copy[:1])
        table += pages
        return Growth(tuple(pages), copy)

    def grow_if_free(self, request: Request, num_tokens: int) -> tuple[int, ...]:
        """Append pages to the table as far as it takes to cover num_tokens slots and pages are free.

        Nobody loses anything for them, a cached prefix neither. Returns the new pages.
        """
        missing = self.pages_for(num_tokens) - len(request.kv.page_table)
        count = max(min(missing, self.pool.num_free), 0)
        for group in self.groups:
            count = group.without_cost(count)
        pages = self.pool.allocate(count)
        for group in self.groups:
            group.take(pages)
        request.kv.page_table += pages
        return tuple(pages)

    def trim(self, request: Request) -> None:
        """Take back the pages behind what a request has computed: drafts stood there, and were rejected."""
        end = self.pages_for(request.kv.num_computed_tokens)
        surplus = request.kv.page_table[end:]
        if surplus:
            del request.kv.page_table[end:]
            for group in self.groups:
                group.drop(surplus)
            self.pool.release(surplus)

    def _take(self, count: int, unseen: int = 0) -> list[int] | None:
        """Free pages, evicting what only the cache holds; None: there are not so many.

        Args:
            unseen: so many of them, the first, no window sees.
        """
        if not self._make_room(count, count - unseen):
            return None
        if (short := count + self.spare - self.pool.num_free) > 0:
            self.cache.evict(short)
        pages = self.pool.allocate(count)
        for group in self.groups:
            group.take(pages[unseen:])
        return pages

    def _make_room(self, count: int, seen: int) -> bool:
        """Whether so many pages are available, and to the groups those that are seen; what can be let go of
        is, if need be."""
        return all(group.make_room(count, seen) for group in self.groups) and self.num_available >= count

    def publish(self, request: Request) -> None:
        """Offer the pages of a running request that have become full to the cache, to be shared.

        If the tree holds the same tokens already (from somebody who computed them at the same time,
        or because the last token of a full hit had to be computed anew), the request keeps its
        copy to itself: what it locks is always what it uses, so that a lone request can have the
        whole pool.
        """
        for group in self.groups:
            group.publish(request)
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
        """Put these pages of a request into the tree for the tree's own, if a group prefers them."""
        if not self.groups:
            return False
        old = self.cache.unused_pages(node, tokens)
        if not any(group.prefers(pages[: len(old)], old) for group in self.groups):
            return False
        self.cache.replace(node, tokens, pages)
        return True

    def swap_out(self, request: Request) -> tuple[tuple[int, int], ...]:
        """Blocks of the swap space for the pages of a request that is being preempted: (page, block) pairs.

        (): computing the tokens again is cheaper, or the swap space is full. (Beams come back by way of their
        prompt, and a pooled request needs every token's vector again.)
        """
        if request.group.forks or request.params.pooling is not None:
            return ()
        tokens = request.kv.num_computed_tokens
        pages = request.kv.page_table[self.first_held(tokens) : self.pages_for(tokens)]
        blocks = self.swap.take(tokens, len(pages))
        if blocks:
            request.kv.swapped, request.kv.num_swapped_tokens, request.kv.swapping = blocks, tokens, True
            for group in self.groups:
                group.save(request, pages, tokens)
        return tuple(zip(pages, blocks, strict=False)) if blocks else ()

    def regroup(
        self, members: Sequence[Request], parents: Sequence[Request], ended: Sequence[Request]
    ) -> None:
        """Give members[i] the page table that parents[i] has now, and release the tables of `ended`.

        Nothing is copied here: a member that shares a partial page copies it in grow().
        """
        states = [_copy(parent.kv) for parent in parents]
        for parent, state in zip(parents, states, strict=True):
            self.pool.retain(state.page_table[state.num_released_pages :])
            for group in self.groups:
                group.fork(parent)
            if state.cache_node is not None:
                self.cache.lock(state.cache_node)
        for request in (*members, *ended):
            self.release(request, publish=False)
        for member, state in zip(members, states, strict=True):
            member.kv = state
            for group in self.groups:
                group.join(member)

    def release(self, request: Request, publish: bool = True) -> None:
        """Take back all pages of a request. Full ones stay in the cache unless publish is False."""
        node = request.kv.cache_node
        if node is not None:
            if publish and (full := self._publishable(request)) > request.kv.num_cached_pages:
                tokens, pages = self._unpublished(request, full)
                self._replace(node, tokens, pages)
                self.cache.insert(node, tokens, pages)
            self.cache.unlock(node)
        kv = request.kv
        for group in self.groups:
            group.leave(request)
        self.pool.release(kv.page_table[kv.num_released_pages :])
        kv.leave()

    def _full_pages(self, request: Request) -> int:
        """Pages full of computed tokens. Tokens verified beyond a stop are not part of the sequence."""
        if request.kv.arriving:
            return request.kv.num_cached_pages
        return min(request.kv.num_computed_tokens, len(request.token_ids)) // self.page_size

    def _publishable(self, request: Request) -> int:
        """Leading pages of the table that are in the tree or may enter it."""
        if request.kv.num_released_pages:
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
        self.disk.clear()
        return self.cache.num_pages == 0

    def check_waiting(self, waiting: Sequence[Request], steps: Collection[int]) -> None:
        """Raise IntegrityError unless blocks of swap space and disk are held by these requests and steps."""
        self.swap.check_integrity(waiting)
        self.disk.check_waiting(waiting, steps)

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Raise IntegrityError unless counts, locks and tables agree. O(pages)."""
        check_tables(self, running)


def _copy(kv: KVState) -> KVState:
    """The state of a beam that goes on from this one. They share the last page until one writes to it."""
    return replace(kv, page_table=list(kv.page_table), shares_tail=True, arriving=False)
