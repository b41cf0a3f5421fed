"""KVState: where the keys and values of one request are, and how far they have come."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.engine.cross_pages import CrossEntry
from octavo.engine.disk_tier import Fetch
from octavo.engine.prefix_cache import Node


@dataclass(slots=True, eq=False)
class KVState:
    """What a request has of the pages. Only who holds pages writes it, and the scheduler the first two.

    Attributes:
        num_computed_tokens: tokens whose KV is in the pages, confirmed by a result.
        num_scheduled_tokens: the same, with the steps in flight.
        page_table: pages of slots [0, page_size), [page_size, 2 page_size), ...
        shares_tail: the page that its next token goes to may be somebody else's as well.
        arriving: it began with pages that are copied in, by a step that has not been confirmed.
        cache_node: deepest node of the prefix cache in use, locked while it runs.
        num_cached_pages: leading pages of the table that the cache has been offered.
        num_gone_pages: leading pages that were behind the window and are not held any more (engine.windows).
        num_passed_pages: leading pages that its layers with a window see no more (engine.local_pages).
        cross: pages of the encoder's keys and values, while it runs.
        swapped, num_swapped_tokens: slots of the swap space that hold its first tokens' KV (as far as the
            next one sees it), while it waits; swapping: the step that fills them has not been confirmed.
        swap_in: (slot, page) pairs that its first step copies.
        fetch: what the disk holds of its prefix, while it waits; load_in: (slot, page) pairs of that,
            which its first step copies.
    """

    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    page_table: list[int] = field(default_factory=list)
    shares_tail: bool = False
    arriving: bool = False
    cache_node: Node | None = None
    num_cached_pages: int = 0
    num_gone_pages: int = 0
    num_passed_pages: int = 0
    cross: CrossEntry | None = None
    swapped: list[int] = field(default_factory=list)
    num_swapped_tokens: int = 0
    swapping: bool = False
    swap_in: tuple[tuple[int, int], ...] = ()
    fetch: Fetch | None = None
    load_in: tuple[tuple[int, int], ...] = ()

    def leave(self) -> None:
        """Its pages are given back; what waits for it elsewhere stays."""
        self.page_table, self.cache_node, self.cross = [], None, None
        self.num_cached_pages = self.num_gone_pages = self.num_passed_pages = 0
        self.shares_tail = self.arriving = False
        self.num_computed_tokens = self.num_scheduled_tokens = 0
