"""Every state of a small world: the real KV manager, pool and tree, and what stands in the pages.

    breadth first from nothing:  state --begin/extend/fork/regroup/finish/abort/evict--> state ...

States are told apart by what they mean: pages renamed by first use, times of use by rank. So the search
ends, and what holds in all states found holds for any sequence of moves in such a world.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from octavo.config import SchedulerConfig
from octavo.engine.groups.sliding_pages import SlidingPages
from octavo.engine.groups.windows import Window, Windows
from octavo.engine.kv_manager import Growth, KVManager
from octavo.engine.page_group import NO_PAGE
from octavo.engine.page_pool import ensure
from octavo.engine.prefix_cache import Node
from octavo.engine.request import EngineRequest, Request, RequestState
from octavo.engine.step_plan import StepPlan
from octavo.params import RequestMetrics, SamplingParams
from support.page_parts import part

NOTHING: frozenset[int] = frozenset()
PARAMS = SamplingParams(seed=0)


@dataclass(frozen=True)
class Size:
    """Of a world; prompts are what requests may begin with, tokens what may follow."""

    num_pages: int = 4
    page_size: int = 2
    max_len: int = 4
    max_running: int = 2
    prompts: tuple[tuple[int, ...], ...] = ((0, 0), (0, 0, 1))
    tokens: tuple[int, ...] = (0, 1)
    caching: bool = True
    window: int | None = None
    sliding_window: int | None = None  # of layers beside such that see everything
    num_sliding: int = 0


@dataclass
class World:
    """slots[page][place]: the prefix of tokens whose last one's KV is there; sliding: of sliding pages."""

    size: Size
    kv: KVManager
    running: list[Request] = field(default_factory=list)
    slots: list[list[tuple[int, ...] | None]] = field(default_factory=list)
    copied: bool = False  # by the last move
    sliding: list[list[tuple[int, ...] | None]] = field(default_factory=list)

    @staticmethod
    def empty(size: Size) -> World:
        numbers = size.num_pages, size.page_size, size.max_len
        kv = KVManager(SchedulerConfig(*numbers, enable_prefix_caching=size.caching))
        # By hand, as a config takes no fewer sliding pages than steps of many tokens need.
        most = kv.pages_for(size.max_len)
        if size.window is not None:
            kv.groups = (Windows(Window(size.window, size.page_size, most), kv.pool, kv.cache, size.caching),)
        if size.sliding_window is not None:
            window = Window(size.sliding_window, size.page_size, most)
            kv.groups = (*kv.groups, SlidingPages(window, kv.pool, size.num_sliding, size.caching))
        slots, sliding = (
            [[None] * size.page_size for _ in range(count)] for count in (size.num_pages, size.num_sliding)
        )
        return World(size, kv, [], slots, False, sliding)

    def copy(self) -> World:
        """A world of its own (pickled: several times as fast as deepcopy)."""
        twin: World = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        return twin

    # --- moves: each returns whether anything happened ----------------------------------------------

    def begin(self, prompt: tuple[int, ...]) -> bool:
        """A request enters and computes its prompt in one step."""
        request = new_request(list(prompt))
        if not self.kv.begin(request, 0):
            return False
        self.running.append(request)
        return self._compute(request)

    def extend(self, index: int, token: int) -> bool:
        """A request draws a token, and a step writes its KV. Not if there is no page for it."""
        request = self.running[index]
        request.token_ids.append(token)
        return self._compute(request)

    def _compute(self, request: Request) -> bool:
        end, done = len(request.token_ids), request.kv.num_computed_tokens
        growth = self.kv.grow(request, end)
        if growth is None:
            return False
        self._copy(growth)
        for position in range(done, end):
            page = request.kv.page_table[position // self.size.page_size]
            ensure(self.kv.pool.references(page) == 1, f"a write to page {page}, which is shared")
            self.slots[page][position % self.size.page_size] = tuple(request.token_ids[: position + 1])
            if (sliding := part(self.kv, SlidingPages)) is not None:
                mine = self.sliding[sliding.of[page]]
                mine[position % self.size.page_size] = tuple(request.token_ids[: position + 1])
        request.kv.num_computed_tokens = request.kv.num_scheduled_tokens = end
        self.kv.publish(request)
        return True

    def _copy(self, growth: Growth) -> None:
        self.copied = growth.copy is not None
        if growth.copy is not None:
            source, destination = growth.copy
            self.slots[destination] = list(self.slots[source])
            plan = StepPlan(0, (), (), ())
            for group in self.kv.groups:
                group.moves(plan)
            sources, targets = plan.sliding_sources, plan.sliding_targets
            if sources is not None and targets is not None:
                self.sliding[targets[destination]] = list(self.sliding[sources[source]])

    def fork(self, index: int) -> bool:
        """A new request goes on from where another one is."""
        parent, child = self.running[index], new_request(list(self.running[index].token_ids))
        self.running.append(child)
        self.kv.regroup((parent, child), (parent, parent), ())
        return True

    def replace(self, index: int, by: int) -> bool:
        """A beam is given up, and its row continues another one."""
        self.running[index].token_ids = list(self.running[by].token_ids)
        self.kv.regroup(self.running, [self.running[by if i == index else i] for i in _each(self)], ())
        return True

    def leave(self, index: int, publish: bool) -> bool:
        self.kv.release(self.running.pop(index), publish)
        return True

    def let_go(self, index: int) -> bool:
        """Somebody needs pages: a request gives back what is behind its window."""
        request, windows = self.running[index], part(self.kv, Windows)
        before = request.kv.num_released_pages
        if windows is not None:
            windows.let_go(request)
        return request.kv.num_released_pages > before

    def advance(self, index: int) -> bool:
        """Somebody needs sliding pages: a request says which it does not see any more."""
        request, sliding = self.running[index], part(self.kv, SlidingPages)
        before = request.kv.num_unseen_pages
        if sliding is not None:
            sliding.advance(request)
        return request.kv.num_unseen_pages > before

    def steal(self) -> bool:
        """And the page that has been idle longest loses its own."""
        sliding = part(self.kv, SlidingPages)
        if sliding is None or not sliding._idle:
            return False
        sliding._lose(sliding._idle.popitem(last=False)[0])
        return True

    def evict(self) -> bool:
        return self.kv.cache.evict(1) > 0

    def moves(self) -> Iterator[tuple[str, Callable[[World], bool]]]:
        """Names, and what to do with a copy of this world."""
        size = self.size
        if len(self.running) < size.max_running:
            for prompt in size.prompts:
                yield f"begin {prompt}", lambda w, p=prompt: w.begin(p)  # type: ignore[misc]
            for i in _each(self):
                yield f"fork {i}", lambda w, i=i: w.fork(i)  # type: ignore[misc]
        for i, request in enumerate(self.running):
            if len(request.token_ids) < size.max_len:
                for token in size.tokens:
                    yield f"extend {i} {token}", lambda w, i=i, t=token: w.extend(i, t)  # type: ignore[misc]
            for other in _each(self):
                if other != i:
                    yield f"replace {i} {other}", lambda w, i=i, o=other: w.replace(i, o)  # type: ignore[misc]
            if size.window is not None:
                yield f"let go {i}", lambda w, i=i: w.let_go(i)  # type: ignore[misc]
            if size.sliding_window is not None:
                yield f"advance {i}", lambda w, i=i: w.advance(i)  # type: ignore[misc]
            yield f"finish {i}", lambda w, i=i: w.leave(i, True)  # type: ignore[misc]
            yield f"abort {i}", lambda w, i=i: w.leave(i, False)  # type: ignore[misc]
        if self.kv.cache.num_evictable:
            yield "evict", lambda w: w.evict()
        if size.sliding_window is not None:
            yield "steal", lambda w: w.steal()

    # --- what must hold -----------------------------------------------------------------------------

    def check(self) -> None:
        """The books agree, and every page holds what its users take it for."""
        self.kv.check_integrity(self.running)
        for request in self.running:
            computed = request.kv.num_computed_tokens
            seen = 0 if self.size.window is None else max(computed - self.size.window + 1, 0)
            self._check_pages(request.token_ids[:computed], request.kv.page_table, seen)
            if self.size.sliding_window is not None:
                seen = max(computed - self.size.sliding_window + 1, 0)
                self._check_sliding(request.token_ids[:computed], request.kv.page_table, seen)
        for tokens, pages in paths(self.kv):
            self._check_pages(tokens, pages)
            self._check_sliding(tokens, pages)

    def _check_pages(self, tokens: list[int], pages: list[int], first: int = 0) -> None:
        for position in range(first, len(tokens)):
            page = pages[position // self.size.page_size]
            found = self.slots[page][position % self.size.page_size]
            ensure(found == tuple(tokens[: position + 1]), f"page {page} holds {found} at {position}")

    def _check_sliding(self, tokens: list[int], pages: list[int], first: int | None = None) -> None:
        """Sliding pages hold the same, from a position on; None: those that are there."""
        sliding = part(self.kv, SlidingPages)
        for position in range(first or 0, len(tokens)) if sliding is not None else ():
            own = sliding.of[pages[position // self.size.page_size]]
            if own == NO_PAGE and first is None:
                continue
            found = None if own == NO_PAGE else self.sliding[own][position % self.size.page_size]
            ensure(found == tuple(tokens[: position + 1]), f"sliding page {own} holds {found} at {position}")

    def check_drained(self) -> None:
        """Everybody leaves, the cache is emptied: all pages are free. Ends this world."""
        while self.running:
            self.leave(0, True)
            self.check()
        ensure(self.kv.reset_prefix_cache(), "the cache cannot be emptied")
        ensure(self.kv.pool.num_free == self.size.num_pages, "pages have leaked")
        sliding = part(self.kv, SlidingPages)
        ensure(sliding is None or sliding.num_available == self.size.num_sliding, "sliding pages have leaked")

    def key(self) -> Any:
        """What this state means."""
        names: dict[int, int] = {}

        def named(pages: list[int]) -> tuple[int, ...]:
            return tuple(NO_PAGE if page == NO_PAGE else names.setdefault(page, len(names)) for page in pages)

        requests = tuple(
            (
                tuple(r.token_ids),
                named(r.kv.page_table),
                r.kv.num_cached_pages,
                r.kv.shares_tail,
                r.kv.num_unseen_pages,
            )
            for r in self.running
        )
        nodes = sorted(self.kv.cache.nodes(), key=lambda node: node.last_used)
        ranks = {stamp: rank for rank, stamp in enumerate(sorted({node.last_used for node in nodes}))}
        tree = tuple(
            (tuple(tokens), named(pages), node.locks, ranks[node.last_used])
            for node, tokens, pages in sorted(_walk(self.kv), key=lambda entry: entry[1])
        )
        sliding = part(self.kv, SlidingPages)
        if sliding is None:
            return requests, tree
        gone = tuple(
            sorted(name for page, name in names.items() if page != NO_PAGE and sliding.of[page] == NO_PAGE)
        )
        return requests, tree, gone, named(list(sliding._idle))


def _each(world: World) -> range:
    return range(len(world.running))


def new_request(tokens: list[int]) -> Request:
    request = Request(EngineRequest("r", tokens, PARAMS), 0, 0, (0, 0), 99, NOTHING, RequestMetrics(0.0))
    request.state = RequestState.RUNNING
    return request


def _walk(kv: KVManager) -> list[tuple[Node, list[int], list[int]]]:
    """Each node with the tokens and the pages from the root down to it."""
    whole: dict[Node, tuple[list[int], list[int]]] = {}
    for node in kv.cache.nodes():
        tokens, pages = whole[node.parent] if node.parent is not None else ([], [])
        whole[node] = tokens + node.tokens, pages + node.pages
    return [(node, tokens, pages) for node, (tokens, pages) in whole.items()]


def paths(kv: KVManager) -> list[tuple[list[int], list[int]]]:
    return [(tokens, pages) for _, tokens, pages in _walk(kv)]


@dataclass(frozen=True)
class Explored:
    """What was found: states and moves between them, and whether that is all of them."""

    states: int
    moves: int
    copies: int
    evictions: int
    complete: bool


def explore(size: Size, limit: int) -> Explored:
    """All states of a world, or the first `limit`.

    Raises:
        IntegrityError: something that must hold does not; the moves that lead there are noted on it.
    """
    start = World.empty(size)
    seen = {start.key()}
    queue: deque[tuple[World, tuple[str, ...]]] = deque([(start, ())])
    moves = copies = evictions = 0
    while queue:
        world, way = queue.popleft()
        for name, move in world.moves():
            after = world.copy()
            after.copied = False
            try:
                if not move(after):
                    continue
                moves += 1
                copies += after.copied
                evictions += name == "evict"
                key = after.key()
                if key in seen:
                    continue
                after.check()
                after.copy().check_drained()
            except Exception as error:
                error.add_note(" -> ".join((*way, name)))
                raise
            if len(seen) >= limit:
                return Explored(len(seen), moves, copies, evictions, False)
            seen.add(key)
            queue.append((after, (*way, name)))
    return Explored(len(seen), moves, copies, evictions, True)
