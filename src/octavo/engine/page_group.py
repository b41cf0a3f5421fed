"""PageGroup: what layers with a window or with cross-attention need beside a page table."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from octavo.config.scheduler import SchedulerConfig

if TYPE_CHECKING:
    from octavo.engine.page_pool import PagePool
    from octavo.engine.prefix_cache import PrefixCache
    from octavo.engine.request import Request
    from octavo.engine.sources import Start
    from octavo.engine.step_builder import StepBuilder
    from octavo.engine.step_plan import RowStep, StepPlan

_GROUPS = "octavo.engine.groups"

NO_PAGE = -1
"""In a page table: the request has released this page, which was behind its window. In SlidingPages.of:
the page has no page of the sliding-window layers."""


class AdmitStatus(Enum):
    """Whether a waiting request may enter a step. LATER: pass it over. NO_ROOM: stop admitting here."""

    NOW = 0
    LATER = 1
    NO_ROOM = 2


@dataclass(slots=True, eq=False)
class EncoderOutput:
    """Keys and values of one encoder input.

    Attributes:
        key: names the input (and whoever may share it).
        users: running requests that read it.
        written: a result has confirmed the step in which the encoder computed it. Until then only
            requests of that very step may share it: should the step fail, all of them end.
    """

    key: str | None
    pages: tuple[int, ...]
    users: int = 0
    written: bool = False


class PageGroup:
    """Layers of a model that need other pages than all pages of a request while it runs.

    KVManager keeps the page tables, the tree and the pool. Before it does something to pages it asks every
    group, then tells every group; it knows none by name. What a group remembers of a request stands in
    Request.kv. The methods here do what layers that see all tokens need: nothing. A model that has only
    such layers has no group.
    """

    # --- whether ----------------------------------------------------------------------------------

    def admit_status(self, request: Request, step: StepBuilder) -> AdmitStatus:
        """Whether a waiting request may enter this step."""
        return AdmitStatus.NOW

    def need(self, request: Request) -> int:
        """Pages that a request takes when it begins, beside those of its page table."""
        return 0

    def at_most(self, request: Request, missing: int) -> int:
        """How many pages a request holds at a time, of `missing` pages that its known tokens still need."""
        return missing

    def make_room(self, count: int, seen: int) -> bool:
        """Let requests release what they need no more. Returns whether `count` pages can be taken then.

        Args:
            seen: how many of these pages the layers of this group will read.
        """
        return True

    def admit(self, request: Request, start: Start, missing: int, reserve: int) -> bool:
        """Admit a request at this start, with `missing` new pages, if `reserve` pages are left then.

        False: it does not fit, and nothing has changed.
        """
        return True

    def alone(self) -> bool:
        """Whether a request that runs alone may begin without the tree's pages of its prefix."""
        return False

    def without_cost(self, count: int) -> int:
        """How many of `count` free pages can be taken without evicting anything."""
        return count

    # --- how far a prefix is worth something ------------------------------------------------------

    def first_held(self, num_computed: int) -> int:
        """The number of the first page that a request still needs after so many computed tokens."""
        return 0

    def usable(self, pages: Sequence[int]) -> int:
        """How many of a cached prefix's first pages a request can begin after."""
        return len(pages)

    def can_share(self, computed: int, pages: Sequence[int], table: Sequence[int]) -> bool:
        """Whether a request can begin after `computed` tokens, with pages of the tree, then a leader's."""
        return True

    def whole(self, pages: Sequence[int]) -> Sequence[int]:
        """The first of these consecutive pages, as far as they are worth keeping on disk."""
        return pages

    def prefers(self, new: Sequence[int], old: Sequence[int]) -> bool:
        """Whether the tree should rather hold these pages than others with the same tokens."""
        return False

    # --- what happens -----------------------------------------------------------------------------

    def pin(self, leader: Request | None) -> None:
        """Release no page of this leader until pin(None): a sibling is about to copy its last page."""

    def begin(self, request: Request, pages: Sequence[int]) -> None:
        """An admitted request has its page table. pages: what need() asked for beside it."""

    def arrive(self, pages: Sequence[int]) -> None:
        """The next plan copies keys and values into these pages, which this group reads."""

    def enter(self, request: Request, step: StepBuilder) -> None:
        """A request that has begun enters this step."""

    def grow(self, request: Request) -> None:
        """A request is about to take pages."""

    def take(self, pages: Sequence[int]) -> None:
        """A request has taken these new pages, and will read them."""

    def copy(self, source: int, target: int) -> None:
        """A request goes on with `target` in the place of `source`; the next plan copies the page."""

    def drop(self, pages: Sequence[int]) -> None:
        """A request gives these pages back: it has written nothing in them that counts."""

    def publish(self, request: Request) -> None:
        """A request is about to offer its pages to the tree."""

    def save(self, request: Request, pages: Sequence[int], tokens: int) -> None:
        """The next plan copies these pages of a request, which hold `tokens` tokens, to the swap space."""

    def read(self, pages: Iterable[int]) -> None:
        """The next plan reads these pages."""

    def fork(self, parent: Request) -> None:
        """One more beam goes on from the pages of this one."""

    def join(self, member: Request) -> None:
        """The beam of the last fork(): it has the table and the state of its parent now."""

    def leave(self, request: Request) -> None:
        """A request is about to release its table."""

    # --- plans ------------------------------------------------------------------------------------

    def number(self, step: RowStep) -> None:
        """Write into a row's step the page numbers of this group that belong to its pages."""

    def moves(self, plan: StepPlan) -> None:
        """Write into a plan the pages of this group that are copied with its pages."""

    def usage(self) -> float:
        """Share of what the group has that running requests need, 0..1."""
        return 0.0

    def owned(self) -> Mapping[int, int]:
        """Pages of the pool that are in no table -> references that are the group's."""
        return {}

    def check(self, running: Sequence[Request]) -> None:
        """Raise IntegrityError unless the group's state and these requests agree. O(pages)."""


def groups_of(config: SchedulerConfig, pool: PagePool, cache: PrefixCache) -> tuple[PageGroup, ...]:
    """Who keeps what the layers of a model with these numbers need beyond tables, tree and pool.

    Each file of engine/groups/ says it by its group_of(), with these arguments; nothing else lists them.
    """
    files = sorted(file.name for file in pkgutil.iter_modules(importlib.import_module(_GROUPS).__path__))
    found = [importlib.import_module(f"{_GROUPS}.{name}").group_of(config, pool, cache) for name in files]
    return tuple(group for group in found if group is not None)
