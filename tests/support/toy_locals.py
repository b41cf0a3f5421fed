"""Local pages for the toy executor: what layers with a window write and read, checked as all pages are."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.page_group import NO_PAGE
from octavo.engine.plan import RowStep, StepPlan

Content = list[int | None]


class LocalPageError(Exception):
    """A plan reads or writes a local page that it must not."""


class ToyLocals:
    """Slots of local pages, and each row's table of them.

    Args:
        window: tokens that a token sees, itself included.

    Attributes:
        gone: how many pages rows began with, or had passed, that had no local page.
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
        """The local half of a page that goes to disk."""
        assert plan.local_sources is not None
        if plan.local_sources[page] == NO_PAGE:
            raise LocalPageError(f"page {page} goes to disk without its local page")
        return list(self.slots[plan.local_sources[page]])

    def copy(self, plan: StepPlan, loads: Sequence[tuple[Content, int]]) -> None:
        """Everything that the plan copies; all are read before any is written.

        Args:
            loads: the local half of what is loaded, and the page it goes to.
        """
        sources, targets = plan.local_sources or {}, plan.local_targets or {}
        read = [(list(self.slots[sources[a]]), targets[b]) for a, b in plan.copies]
        read += [(list(self.swapped[s]), targets[page]) for s, page in plan.swaps_in if page in targets]
        read += [(list(content), targets[page]) for content, page in loads if page in targets]
        saved = {s: list(self.slots[sources[page]]) for page, s in plan.swaps_out if page in sources}
        for _, s in plan.swaps_out:
            self.swapped.pop(s, None)
        self.swapped.update(saved)
        if len({target for _, target in read}) != len(read):
            raise LocalPageError("two copies go to one local page")
        for content, target in read:
            self.slots[target] = content

    def grow(self, step: RowStep, new: bool, first_own: int) -> None:
        """The step's pages at the end of the row's table; what a fresh one held is meaningless."""
        table = self.tables.setdefault(step.row, [])
        if new:
            table.clear()
        if len(step.local_pages) != len(step.pages):
            raise LocalPageError("not every page is said to have a local page, or none")
        del table[
            -(-(step.start + step.count) // self.page_size) - len(step.pages) :
        ]  # left by rejected drafts
        if step.copied_page is not None:
            assert step.copied_local_page is not None
            table[step.start // self.page_size] = step.copied_local_page
        for position, local in enumerate(step.local_pages):
            table.append(local)
            if position >= first_own:
                self.slots[local] = [None] * self.page_size
        first = self.first_seen(step.start) // self.page_size
        self.gone += sum(local == NO_PAGE for local in table[:first])
        seen = table[first:]
        if NO_PAGE in seen or len(set(seen)) != len(seen):
            raise LocalPageError(f"row {step.row} sees a page without a local page of its own: {seen}")
        table[:first] = [NO_PAGE] * min(first, len(table))

    def read(self, step: RowStep, expected: Sequence[int]) -> None:
        """The prints of the positions before the step are where the row sees them."""
        for position in range(self.first_seen(step.start), step.start):
            local = self.tables[step.row][position // self.page_size]
            if self.slots[local][position % self.page_size] != expected[position]:
                raise LocalPageError(f"local page {local} lacks position {position} of row {step.row}")

    def write(self, step: RowStep, values: Sequence[int]) -> None:
        for position in range(step.start, len(values)):
            local = self.tables[step.row][position // self.page_size]
            self.slots[local][position % self.page_size] = values[position]
