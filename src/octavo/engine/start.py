"""Start: with which pages a request begins, and how far its tokens are computed then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.engine.prefix_cache import Node
from octavo.engine.windows import GONE


@dataclass(slots=True)
class Start:
    """What a waiting request can begin with. Nobody holds any of it yet.

        pages  [ gone | of the tree, of its leader ]  + one page for each slot of `back`
        computed ====================================================>

    Attributes:
        node: where the request is in the tree; the root if nothing of it is used, None without a tree.
        cached: how many of the pages are the tree's.
        back: slots to be copied into pages of its own; from_disk: of the disk, not of the swap space.
    """

    node: Node | None
    pages: list[int]
    cached: int
    computed: int
    back: Sequence[int] = ()
    from_disk: bool = False

    @property
    def held(self) -> list[int]:
        """The pages that others hold too."""
        return self.pages[self.pages.count(GONE) :]
