"""Dividing the bytes of KV pages where some layers have a window, and pages of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LocalNeed:
    """Local pages of a model (engine.local_pages).

    Attributes:
        window: tokens that the widest window of its layers sees.
        most: that one sequence needs at a time. enough: for as many sequences as may run, of any length.
        bytes_per_token: of the layers with a window.
    """

    window: int
    most: int
    enough: int
    bytes_per_token: int

    def exactly(self, count: int | None) -> LocalNeed:
        """The same where somebody has said how many there are to be."""
        return self if count is None else replace(self, most=count, enough=count)


def divide(
    room: int,
    page: int,
    local_page: int,
    need: LocalNeed,
    longest: int,
    wanted: int,
    num_pages: int | None = None,
) -> tuple[int, int]:
    """How many pages and how many local ones; never more of these.

    Everything that is wanted, if there is room. Otherwise first one sequence of the greatest length, then
    local pages for all sequences, and as many pages as room is left for.

    Args:
        room: bytes. page, local_page: bytes of each.
        longest: pages of the longest sequence. wanted: pages of as many as may run.
        num_pages: exactly so many.
    """
    first = longest if num_pages is None else num_pages
    local = max(min((room - page * first) // local_page, need.enough), need.most)
    if num_pages is not None:
        return num_pages, min(local, num_pages)
    pages = min((room - local_page * local) // page, wanted)
    if pages >= local:
        return pages, local
    both = min(room // (page + local_page), wanted)  # each page has a local one
    return both, both
