"""Where a model's drafts keep keys and values: how far each page has them, and pages behind a row's own.

tokens of a row   0 ............ 15 | 16 .... 20 |            20: the last known one
its pages              page 7       |   page 3   |            held: position 21 may lie in page 3, too
written           16                | 4                       of page 3: positions 16 to 19
drafted                                 20 21 22 | 23 24      23 and 24: in a loose page
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.engine.step_plan import StepPlan
from octavo.runtime.page_moves import pairs_of
from octavo.runtime.states import RequestStates


@dataclass(frozen=True, slots=True)
class LoosePages:
    """Pages that no request holds. What is drafted behind a row's own pages lies there for one draft.

    Attributes:
        firsts: of them, row after row; and of those of layers with a window, if such layers draft and have
            pages of their own.
        each: pages of a row.
    """

    firsts: tuple[int, ...]
    each: int

    def lend(self, states: RequestStates, row: int, held: int, needed: int) -> None:
        """Put the row's loose pages behind the `held` ones of its table, until it has `needed`.

        They stay in the table, where the row's next pages replace them: nobody reads beyond a row's tokens.
        """
        tables = (states.pages, states.windowed)
        for table, first in zip(tables, self.firsts, strict=False):
            begin = first + row * self.each
            table[row, held:needed] = np.arange(begin, begin + needed - held)


def loose_pages(most: int, page_size: int) -> int:
    """How many a row needs for a draft of `most` tokens: its own pages end at any token."""
    return -(-most // page_size)


class Written(Protocol):
    """Which of a row's tokens have the keys and values that drafts read."""

    @property
    def nbytes(self) -> int: ...

    def follow(self, plan: StepPlan) -> None:
        """Pages go to others, and are copied, as this plan says. Called before anything of it is done."""
        ...

    def count(self, states: RequestStates, row: int, length: int) -> int:
        """How many of the row's first tokens have them, the last of its `length` ones never counted."""
        ...

    def wrote(self, states: RequestStates, row: int, start: int, tokens: Sequence[int], held: int) -> None:
        """Those of these tokens, from position `start` on, have been written to the row's table.

        Known tokens, or drafted ones that may turn out to be the row's. Nobody may rely on what lies in the
        pages behind the first `held` ones.
        """
        ...


class TargetWrites:
    """A Written of layers that are the target's own: it has written all but the last known token."""

    nbytes = 0

    def follow(self, plan: StepPlan) -> None:
        pass

    def count(self, states: RequestStates, row: int, length: int) -> int:
        return length - 1

    def wrote(self, states: RequestStates, row: int, start: int, tokens: Sequence[int], held: int) -> None:
        pass


class DrafterWrites:
    """A Written of a drafter's own layers, page by page.

    A page that comes to a row to be written to has none, whoever had it before; a copy has as many as what it
    was copied from. So what a prefix from the cache, a page from the swap space or a sibling's copy lacks is
    known, and computed when it is needed. Pages from disk may have been written by requests that had no
    drafts, which their file does not say: they count as empty.

    Args:
        num_pages: of the cache, loose ones and swap space included.
        first_block: the swap space begins here (PageMoves).
    """

    def __init__(self, num_pages: int, page_size: int, first_block: int) -> None:
        self._written = np.zeros(num_pages, np.int32)  # of each page: how many of its first slots
        self._page_size, self._first_block = page_size, first_block
        # row -> (position of the first, drafted tokens, the pages in which they lie)
        self._drafted: dict[int, tuple[int, tuple[int, ...], list[int]]] = {}

    @property
    def nbytes(self) -> int:
        return self._written.nbytes

    def follow(self, plan: StepPlan) -> None:
        written, size = self._written, self._page_size
        pairs = pairs_of(plan, self._first_block) if plan.moves_pages else ()
        copied = [int(written[source]) for source, _ in pairs]  # all are read before any is written
        for step in plan.steps:
            have = -(-(step.start + step.count) // size) - len(step.pages)
            for index, page in enumerate(step.pages, have):
                if index * size >= step.start:  # to be written to: not from the cache, nor a copy
                    written[page] = 0
        for (_, target), count in zip(pairs, copied, strict=True):
            written[target] = count
        for _, page in plan.loads:
            written[page] = 0
        if plan.copies:
            self._end_at_starts(plan)
        for new in plan.new_rows:
            self._drafted.pop(new.row, None)

    def _end_at_starts(self, plan: StepPlan) -> None:
        """A copied page may hold a sibling's tokens behind those that both have."""
        for step in plan.steps:
            index, shared = divmod(step.start, self._page_size)
            have = -(-(step.start + step.count) // self._page_size) - len(step.pages)
            pages = step.pages[index - have : index - have + 1] if index - have >= 0 else ()
            for page in (*pages, step.copied_page):
                if page is not None and shared:
                    self._written[page] = min(self._written[page], shared)

    def count(self, states: RequestStates, row: int, length: int) -> int:
        self._accept(states, row, length)
        size, last = self._page_size, length - 1
        full = last // size
        short = np.flatnonzero(self._written[states.pages[row, :full]] < size)
        index = int(short[0]) if len(short) else full
        if index * size == last:  # (of the page at `last` the row may hold nothing yet)
            return last
        return min(index * size + int(self._written[states.pages[row, index]]), last)

    def wrote(self, states: RequestStates, row: int, start: int, tokens: Sequence[int], held: int) -> None:
        known = int(states.length[row])
        end = min(start + len(tokens), known, held * self._page_size)
        for index in range(start // self._page_size, -(-end // self._page_size)):
            page = states.pages[row, index]
            count = min(end - index * self._page_size, self._page_size)
            self._written[page] = max(self._written[page], count)
        if start + len(tokens) > known:
            first, last = known // self._page_size, (start + len(tokens) - 1) // self._page_size
            pages = states.pages[row, first : min(last + 1, held)].tolist()
            self._drafted[row] = known, tuple(tokens[known - start :]), pages

    def _accept(self, states: RequestStates, row: int, length: int) -> None:
        """Count the drafted tokens that are the row's by now, as far as they still lie where it looks."""
        first, tokens, pages = self._drafted.pop(row, (length, (), []))
        size = self._page_size
        for position, token in enumerate(tokens[: max(length - first, 0)], first):
            index = position // size
            place = index - first // size
            if place >= len(pages) or states.tokens[row, position] != token:
                return
            page = int(states.pages[row, index])
            if page != pages[place] or self._written[page] != position % size:
                return
            self._written[page] += 1
