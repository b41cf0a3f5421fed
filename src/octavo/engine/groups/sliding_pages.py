"""SlidingPages: pages of the layers with a window, where other layers see everything."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.groups.windows import Window
from octavo.engine.page_group import NO_PAGE, PageGroup
from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.request import Request

if TYPE_CHECKING:
    from octavo.engine.prefix_cache import PrefixCache
    from octavo.engine.sources import Start
    from octavo.engine.step_plan import RowStep, StepPlan


class SlidingPages(PageGroup):
    """Gives a page of the pool a page of the sliding-window layers, its sliding page. Specification:

        table of a request   [ p4   p2   p9 | p7   p1 ]      W = 8 tokens, pages of 4, 19 tokens computed
        of[page]               --   s5   --   s0   s3        s5 is idle: page p2 is out of the window

    1. A page owns its sliding page: copies, the tree, siblings and beams know pages alone. Who takes pages to
       write to takes sliding ones with them; a page that is free owns none.
    2. A running request sees the pages that a token not computed yet, as results have confirmed it, sees
       something of: no step in flight reads an unseen page, and rejected drafts cannot lead back to one.
    3. What nobody sees is idle. It is kept for those who will find its page in the tree; when none is free,
       the page that has been idle longest loses its own: of[page] = NO_PAGE. Without a cache it loses it
       at once.
    4. So a prefix is as good as its end: a request can begin after h of its pages if those that its first
       token sees have sliding pages (usable). Those behind them need none.
    5. If all are seen, it is as if pages had run out: the youngest request is preempted.

    Attributes:
        of: the sliding page of each page, or NO_PAGE.
        window: of these layers; most_pages of it is what one sequence needs at a time.
        running: who has a table.
    """

    def __init__(self, window: Window, pool: PagePool, num_pages: int, caching: bool) -> None:
        self.window, self.num_pages = window, num_pages
        self.of = [NO_PAGE] * pool.num_pages
        self.running: dict[Request, None] = {}
        self._pool, self._caching = pool, caching
        self._free = list(range(num_pages - 1, -1, -1))
        self._seen_by = [0] * pool.num_pages
        self._idle: OrderedDict[int, None] = OrderedDict()  # pages whose own nobody sees, longest ago first
        self._sources: dict[int, int] = {}
        self._targets: dict[int, int] = {}
        pool.on_free = self._freed

    # --- how many ---------------------------------------------------------------------------------

    def without_cost(self, count: int) -> int:
        return min(count, len(self._free))

    @property
    def num_available(self) -> int:
        """Free, or idle."""
        return len(self._free) + len(self._idle)

    def usage(self) -> float:
        """Share that running requests see, 0..1, as far as is known."""
        return 1.0 - self.num_available / self.num_pages

    def make_room(self, count: int, seen: int) -> bool:
        """Let running requests stop seeing pages that have left their windows, if that is needed."""
        if self.num_available < seen:
            for request in self.running:
                self.advance(request)
        return self.num_available >= seen

    def admit(self, request: Request, start: Start, missing: int, reserve: int) -> bool:
        """Count the request as a user of the pages that it begins with, if enough sliding pages are left."""
        unseen = self.window.first_page(start.computed)
        seen = start.pages[unseen:]
        self.see(seen)
        own = len(seen) - bool(
            not start.back and start.computed % self.window.page_size
        )  # the last is copied
        if not self.make_room(missing, self._wanted(request, own, missing, reserve)):
            self.unsee(seen)
            return False
        request.kv.num_unseen_pages = unseen
        self.running[request] = None
        return True

    def _wanted(self, request: Request, own: int, missing: int, reserve: int) -> int:
        """Sliding pages that must be available: what a sequence needs at a time, for each of its beams."""
        wanted = min(missing, self.window.most_pages - own)
        group, size = request.group, self.window.page_size
        beams = group.pages_to_enter(request, size) - -(-request.num_prompt_tokens // size)
        reserve += min(beams, (group.width - 1) * self.window.most_pages) - beams
        return wanted + reserve

    # --- whose they are ---------------------------------------------------------------------------

    def take(self, pages: Sequence[int]) -> None:
        """Give each of these new pages a sliding page, with one user."""
        for page in pages:
            if not self._free:
                ensure(bool(self._idle), "no sliding page is free or idle: ask make_room first")
                oldest, _ = self._idle.popitem(last=False)
                self._lose(oldest)
            self.of[page] = self._free.pop()
            self._seen_by[page] = 1

    def see(self, pages: Iterable[int]) -> None:
        """One more request sees each of these."""
        for page in pages:
            ensure(self.of[page] != NO_PAGE, f"page {page} has no sliding page to be seen")
            if self._seen_by[page] == 0:
                del self._idle[page]
            self._seen_by[page] += 1

    def unsee(self, pages: Iterable[int]) -> None:
        """One request less sees each of these."""
        for page in pages:
            ensure(self._seen_by[page] > 0, f"nobody sees page {page}")
            self._seen_by[page] -= 1
            if self._seen_by[page] == 0:
                if self._caching:
                    self._idle[page] = None
                else:
                    self._lose(page)

    def advance(self, request: Request) -> None:
        """Stop seeing the request's pages that have left its window."""
        first, unseen = self.window.first_page(request.kv.num_computed_tokens), request.kv.num_unseen_pages
        if first > unseen:
            self.unsee(request.kv.page_table[unseen:first])
            request.kv.num_unseen_pages = first

    grow = advance
    drop = unsee

    def fork(self, parent: Request) -> None:
        self.see(parent.kv.page_table[parent.kv.num_unseen_pages :])

    def join(self, member: Request) -> None:
        self.running[member] = None

    def leave(self, request: Request) -> None:
        self.unsee(request.kv.page_table[request.kv.num_unseen_pages :])
        self.running.pop(request, None)

    def _lose(self, page: int) -> None:
        self._free.append(self.of[page])
        self.of[page] = NO_PAGE

    def _freed(self, pages: Sequence[int]) -> None:
        """Nobody refers to these pages any more."""
        for page in pages:
            ensure(self._seen_by[page] == 0, f"page {page} is free, and seen")
            if self.of[page] != NO_PAGE:
                del self._idle[page]
                self._lose(page)

    # --- prefixes ---------------------------------------------------------------------------------

    def usable(self, pages: Sequence[int]) -> int:
        """How many of a prefix's first pages a request can begin after: it then sees pages that are there."""
        count, size = len(pages), self.window.page_size
        while count:
            first = self.window.first_page(count * size)
            missing = next((i for i in range(count - 1, first - 1, -1) if self.of[pages[i]] == NO_PAGE), None)
            if missing is None:
                break
            count = missing
        return count

    def reaches(self, computed: int, table: Sequence[int]) -> bool:
        """Whether a request can begin after so many tokens of a table."""
        first, end = self.window.first_page(computed), -(-computed // self.window.page_size)
        return all(self.of[page] != NO_PAGE for page in table[first:end])

    def can_share(self, computed: int, pages: Sequence[int], table: Sequence[int]) -> bool:
        return computed > len(pages) * self.window.page_size and self.reaches(computed, [*pages, *table])

    def whole(self, pages: Sequence[int]) -> Sequence[int]:
        """The first of consecutive pages, as far as they have sliding ones."""
        missing = next((i for i, page in enumerate(pages) if self.of[page] == NO_PAGE), len(pages))
        return pages[:missing]

    def num_whole(self, pages: Sequence[int]) -> int:
        """How many of these have sliding pages."""
        return sum(self.of[page] != NO_PAGE for page in pages)

    def prefers(self, new: Sequence[int], old: Sequence[int]) -> bool:
        return self.num_whole(new) > self.num_whole(old)

    # --- what the next plan moves -----------------------------------------------------------------

    def copy(self, source: int, target: int) -> None:
        """The next plan copies the sliding page of `source` with it; `source` has a user less."""
        self._sources[source], self._targets[target] = self.of[source], self.of[target]
        self.unsee([source])

    def read(self, pages: Iterable[int]) -> None:
        """The next plan reads the sliding pages of these."""
        self._sources.update((page, self.of[page]) for page in pages)

    def save(self, request: Request, pages: Sequence[int], tokens: int) -> None:
        self.read(pages[self.window.first_page(tokens) :])

    def arrive(self, pages: Iterable[int]) -> None:
        """The next plan writes the sliding pages of these."""
        self._targets.update((page, self.of[page]) for page in pages)

    def number(self, step: RowStep) -> None:
        step.sliding_pages = tuple([self.of[page] for page in step.pages])
        step.copied_sliding_page = None if step.copied_page is None else self.of[step.copied_page]

    def moves(self, plan: StepPlan) -> None:
        """Write into the plan what was asked for since the last call."""
        plan.sliding_sources, plan.sliding_targets = self._sources, self._targets
        self._sources, self._targets = {}, {}

    def check(self, running: Sequence[Request]) -> None:
        owned = [page for page in self.of if page != NO_PAGE]
        ensure(
            sorted(owned + self._free) == list(range(self.num_pages)), "a sliding page is lost or owned twice"
        )
        seen = [0] * len(self.of)
        ensure(set(self.running) == set(running), "a request that sees sliding pages is lost or has ended")
        for request in running:
            unseen = request.kv.num_unseen_pages
            first = self.window.first_page(request.kv.num_computed_tokens)
            ensure(unseen <= first, "a sliding page is given up that the next token sees")
            for page in request.kv.page_table[unseen:]:
                seen[page] += 1
        ensure(seen == self._seen_by, "those who see a page are miscounted")
        for page, count in enumerate(seen):
            has = self.of[page] != NO_PAGE
            ensure(has or not count, f"page {page} is seen, and its sliding page is missing")
            ensure((has and not count) == (page in self._idle), f"page {page} is idle, or is not")
            ensure(not has or self._pool.references(page) > 0, f"page {page} is free, and has a sliding page")


def group_of(config: SchedulerConfig, pool: PagePool, cache: PrefixCache) -> SlidingPages | None:
    """Where some layers have a window, and others see everything."""
    if config.sliding_window is None:
        return None
    window = Window(config.sliding_window, config.page_size, config.sliding_pages_at_a_time)
    return SlidingPages(window, pool, config.num_sliding_pages, config.enable_prefix_caching)
