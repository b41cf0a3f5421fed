"""PageGroup: what some layers ask of their pages beyond what every layer does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.request import Request
    from octavo.engine.start import Start
    from octavo.engine.step_builder import StepBuilder
    from octavo.engine.step_plan import RowStep, StepPlan

NO_PAGE = -1
"""In a page table: the request has released this page, which was behind its window. In SlidingPages.of: the
page has no page of the sliding-window layers."""


class AdmitStatus(Enum):
    """Whether a waiting request may enter a step. LATER: pass it over; NO_ROOM: nor may those behind it."""

    NOW = 0
    LATER = 1
    NO_ROOM = 2


class PageGroup:
    """Layers that need something else than every page of a request for as long as it runs.

    KVManager keeps tables, the tree and the pool. It tells every group what is about to happen to pages,
    asks what may, and knows none by name; what a group has to remember of a request stands in Request.kv.
    The answers here are those of layers that see everything: they ask for nothing, so a model that has
    only such layers has no group, and no step pays for one.
    """

    # --- whether ----------------------------------------------------------------------------------

    def admit_status(self, request: Request, step: StepBuilder) -> AdmitStatus:
        """Whether a waiting request may enter this step."""
        return AdmitStatus.NOW

    def need(self, request: Request) -> int:
        """Pages that a request takes when it begins, beside those of its table."""
        return 0

    def at_most(self, request: Request, missing: int) -> int:
        """How many of the pages that its known tokens still need a request holds at a time."""
        return missing

    def make_room(self, count: int, seen: int) -> bool:
        """Whether so many pages can be taken, of which so many are seen by their taker: now that
        requests have let go of what they need no more."""
        return True

    def admit(self, request: Request, start: Start, missing: int, reserve: int) -> bool:
        """Whether a request can begin so, with `missing` pages of its own and `reserve` left after that.

        It has begun then; False: nothing has changed.
        """
        return True

    def alone(self) -> bool:
        """A lone request should rather begin without what the tree has of its prefix than not at all."""
        return False

    def without_cost(self, count: int) -> int:
        """How many of so many free pages could be taken without anybody's loss."""
        return count

    # --- how far a prefix is worth something ------------------------------------------------------

    def first_held(self, num_computed: int) -> int:
        """The first page that a request holds of so many computed tokens, at least."""
        return 0

    def usable(self, pages: Sequence[int]) -> int:
        """After how many of a cached prefix's pages a request can begin."""
        return len(pages)

    def can_share(self, computed: int, pages: Sequence[int], table: Sequence[int]) -> bool:
        """Whether a request can begin after so many tokens: with pages of the tree, then a leader's table."""
        return True

    def whole(self, pages: Sequence[int]) -> Sequence[int]:
        """The first of consecutive pages, as far as they are worth keeping on disk."""
        return pages

    def prefers(self, new: Sequence[int], old: Sequence[int]) -> bool:
        """Whether the tree should rather hold these pages than others with the same tokens."""
        return False

    # --- what happens -----------------------------------------------------------------------------

    def pin(self, leader: Request | None) -> None:
        """Whose tail a sibling takes, from begin() to grow(), which copies it. None: that is done."""

    def begin(self, request: Request, pages: Sequence[int]) -> None:
        """A request that was admitted has its table, and here is what it needed beside it."""

    def arrive(self, pages: Sequence[int]) -> None:
        """The next plan copies something into these pages, which are seen."""

    def enter(self, request: Request, step: StepBuilder) -> None:
        """A request that has begun enters this step."""

    def grow(self, request: Request) -> None:
        """A request is about to take pages."""

    def take(self, pages: Sequence[int]) -> None:
        """These pages are new, and seen by who takes them."""

    def copy(self, source: int, target: int) -> None:
        """Who used a page goes on with a copy of it, which the next plan makes."""

    def drop(self, pages: Sequence[int]) -> None:
        """Who took these pages gives them back, as it has nothing in them."""

    def publish(self, request: Request) -> None:
        """A request is about to offer its pages to the tree."""

    def save(self, request: Request, pages: Sequence[int], tokens: int) -> None:
        """The next plan copies a request's pages of so many tokens to the swap space."""

    def read(self, pages: Iterable[int]) -> None:
        """The next plan reads these pages."""

    def fork(self, parent: Request) -> None:
        """One more request goes on from what this one holds."""

    def join(self, member: Request) -> None:
        """It is this one, which has the table and the state of its parent from now on."""

    def leave(self, request: Request) -> None:
        """A request is about to release its table."""

    # --- plans ------------------------------------------------------------------------------------

    def number(self, step: RowStep) -> None:
        """Say in a row's step which pages of this group its pages are."""

    def moves(self, plan: StepPlan) -> None:
        """Say in a plan what is copied with its pages."""

    def usage(self) -> float:
        """Share of what the group has that running requests need, 0..1."""
        return 0.0

    def owned(self) -> Mapping[int, int]:
        """Pages of the pool that are in no table -> references that are the group's."""
        return {}

    def check(self, running: Sequence[Request]) -> None:
        """Raise IntegrityError unless the group's state and these requests agree. O(pages)."""
