"""PageGroup: layers that share page tables."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share page tables.

    "self" is causal self-attention over everything before, "cross" attention over an encoder's output. These
    take their pages from one pool: a page serves whichever table it is in. "local" are layers with a window
    beside such that see everything: each page of "self" may own one of theirs (engine.local_pages).

    Attributes:
        window: tokens that the widest window of these layers sees; None: some layer sees everything.
        most_pages: that a sequence of any length needs at a time then (SchedulerConfig.pages_at_a_time).
        num_pages: of "local": how many there are.
    """

    name: str = "self"
    window: int | None = None
    most_pages: int = 0
    num_pages: int = 0


SELF, CROSS = PageGroup("self"), PageGroup("cross")
LOCAL = "local"


def groups_of(config: SchedulerConfig) -> tuple[PageGroup, ...]:
    """Those of a model with these numbers."""
    own = SELF if config.window is None else PageGroup(SELF.name, config.window, config.pages_at_a_time)
    groups = (own, CROSS) if config.max_encoder_len else (own,)
    if config.local_window is None:
        return groups
    return *groups, PageGroup(
        LOCAL, config.local_window, config.local_pages_at_a_time, config.num_local_pages
    )


def is_known(group: PageGroup) -> bool:
    """Whether KVManager knows how to hold its pages."""
    if group.name == LOCAL:
        return group.window is not None and group.num_pages > 0
    return group.name == SELF.name or (group.name == CROSS.name and group.window is None)
