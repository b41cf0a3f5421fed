"""Which groups of layers a model has, and who keeps their pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.config import SchedulerConfig
from octavo.engine.cross_pages import CrossPages
from octavo.engine.page_group import PageGroup
from octavo.engine.page_pool import PagePool, ensure
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.sliding_pages import SlidingPages
from octavo.engine.windows import Window, Windows
from octavo.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group of layers that share a page table (elsewhere: a KV cache group).

    - "self": causal self-attention. Its pages come from the page pool.
    - "cross": attention over an encoder's output. Its pages come from the same pool.
    - "sliding": the sliding-window layers of a model whose other layers see all tokens. A page of "self"
      owns a page of this group while a request sees it through its window (engine.sliding_pages).

    Attributes:
        window: tokens that the widest window of these layers sees; 0: some layer sees all tokens.
        most_pages: pages that a sequence of any length needs at a time (SchedulerConfig.pages_at_a_time).
        num_pages: size of the pool of "sliding".
    """

    name: str = "self"
    window: int = 0
    most_pages: int = 0
    num_pages: int = 0


SELF, CROSS = GroupSpec("self"), GroupSpec("cross")
SLIDING = "sliding"


def specs_of(config: SchedulerConfig) -> tuple[GroupSpec, ...]:
    """Those of a model with these numbers."""
    specs = [GroupSpec(SELF.name, config.window or 0, config.pages_at_a_time)]
    if config.max_encoder_len:
        specs.append(CROSS)
    if config.sliding_window:
        most = config.sliding_pages_at_a_time
        specs.append(GroupSpec(SLIDING, config.sliding_window, most, config.num_sliding_pages))
    return tuple(specs)


def make_groups(
    specs: Sequence[GroupSpec], pool: PagePool, cache: PrefixCache, caching: bool
) -> tuple[PageGroup, ...]:
    """Who keeps what these layers need beyond tables, tree and pool; nobody for those that see everything.

    Raises:
        UnsupportedError: there is no such group.
    """
    names = [spec.name for spec in specs]
    found: list[PageGroup] = []
    for spec in specs:
        window = Window(spec.window, cache.page_size, spec.most_pages)
        match spec:
            case GroupSpec("self", window=0):
                pass
            case GroupSpec("self"):
                found.append(Windows(window, pool, cache, caching))
            case GroupSpec("cross", window=0):
                found.append(CrossPages(pool, cache.page_size))
            case GroupSpec("sliding", num_pages=count) if spec.window and count:
                found.append(SlidingPages(window, pool, count, caching))
            case _:
                raise UnsupportedError(f"page group {spec.name!r} is not supported yet", "groups")
    ensure(SELF.name in names and len(set(names)) == len(names), "one page group 'self' is needed")
    return tuple(found)
