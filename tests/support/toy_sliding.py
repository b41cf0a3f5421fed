"""Sliding pages for the toy executor: what layers with a window write and read, checked as all pages are."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.page_group import NO_PAGE
from octavo.engine.step_plan import RowStep, StepPlan

Content = list[int | None]


class SlidingPageError(Exception):
    """A plan reads or writes a sliding page that it must not."""


class ToySliding:
    """Slots of sliding pages, and each row's table of them.

    Args:
        window: tokens that a token sees, itself included.

    Attributes:
        gone: how many pages rows began with, or had passed, that had no sliding page.
    """

    def __init__(self, num_pages: int, page_size: int, window: int) -> None:
        self.window, self.page_size = window, page_size
        self.slots: list[Content] = [[None] * page_size for _ in range(num_pages)]
        self.tables: dict[int, list[int]] = {}
        self.swapped: dict[int, Content] = {}
        self.gone = 0

    def first_seen(self, start: int) -> int:
        return max(start - self.window + 1, 0)

    def saved(self, plan: StepPlan, page: int) -> Content:
        """The sliding half of a page that goes to disk."""
        assert plan.sliding_sources is not None
        if plan.sliding_sources[page] == NO_PAGE:
            raise SlidingPageError(f"page {page} goes to disk without its sliding page")
        return list(self.slots[plan.sliding_sources[page]])

    def copy(self, plan: StepPlan, loads: Sequence[tuple[Content, int]]) -> None:
        """Everything that the plan copies; all are read before any is written.

        Args:
            loads: the sliding half of what is loaded, and the page it goes to.
        """
        sources, targets = plan.sliding_sources or {}, plan.sliding_targets or {}
        read = [(list(self.slots[sources[a]]), targets[b]) for a, b in plan.copies]
        read += [(list(self.swapped[s]), targets[page]) for s, page in plan.swaps_in if page in targets]
        read += [(list(content), targets[page]) for content, page in loads if page in targets]
        saved = {s: list(self.slots[sources[page]]) for page, s in plan.swaps_out if page in sources}
        for _, s in plan.swaps_out:
            self.swapped.pop(s, None)
        self.swapped.update(saved)
        if len({target for _, target in read}) != len(read):
            raise SlidingPageError("two copies go to one sliding page")
        for content, target in read:
            self.slots[target] = content

    def grow(self, step: RowStep, new: bool, first_own: int) -> None:
        """The step's pages at the end of the row's table; what a fresh one held is meaningless."""
        table = self.tables.setdefault(step.row, [])
        if new:
            table.clear()
        if len(step.sliding_pages) != len(step.pages):
            raise SlidingPageError("not every page is said to have a sliding page, or none")
        del table[
            -(-(step.start + step.count) // self.page_size) - len(step.pages) :
        ]  # left by rejected drafts
        if step.copied_page is not None:
            assert step.copied_sliding_page is not None
            table[step.start // self.page_size] = step.copied_sliding_page
        for position, sliding in enumerate(step.sliding_pages):
            table.append(sliding)
            if position >= first_own:
                self.slots[sliding] = [None] * self.page_size
        first = self.first_seen(step.start) // self.page_size
        self.gone += sum(sliding == NO_PAGE for sliding in table[:first])
        seen = table[first:]
        if NO_PAGE in seen or len(set(seen)) != len(seen):
            raise SlidingPageError(f"row {step.row} sees a page without a sliding page of its own: {seen}")
        table[:first] = [NO_PAGE] * min(first, len(table))

    def read(self, step: RowStep, expected: Sequence[int]) -> None:
        """The prints of the positions before the step are where the row sees them."""
        for position in range(self.first_seen(step.start), step.start):
            sliding = self.tables[step.row][position // self.page_size]
            if self.slots[sliding][position % self.page_size] != expected[position]:
                raise SlidingPageError(f"sliding page {sliding} lacks position {position} of row {step.row}")

    def write(self, step: RowStep, values: Sequence[int]) -> None:
        for position in range(step.start, len(values)):
            sliding = self.tables[step.row][position // self.page_size]
            self.slots[sliding][position % self.page_size] = values[position]
