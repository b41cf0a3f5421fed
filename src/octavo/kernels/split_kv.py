"""SplitKVCache: a model's pages in two memories, of layers that see everything and of those with a window.

    whole   [layer 5 | layer 11 | ...]   pages of the tables that requests hold
    sliding   [layers 0-4 | 6-10 | ...]    sliding pages: fewer, because a window sees few at a time

A batch names both: ForwardBatch.slots and page_tables, and sliding_slots and sliding_tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from octavo.kernels.backend import Backend, KVCache
from octavo.kernels.types import KVLayer, KVSpec


class SplitKVCache:
    """Two caches of one backend, which a model takes for one.

    Attributes:
        whole, sliding: the two; pages of one are not pages of the other.
        spare: a sliding page that is zero for ever; it stands in for those behind the window.
        first_swap: the swap space begins at this sliding page.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[KVSpec],
        num_pages: int,
        num_sliding_pages: int,
        page_size: int,
        swap_pages: int = 0,
    ) -> None:
        everything = [spec for spec in layers if spec.window is None]
        windowed = [spec for spec in layers if spec.window is not None]
        self.spare, self.first_swap = num_sliding_pages, num_sliding_pages + 1
        self.whole: KVCache = backend.kv_cache(everything, num_pages, page_size, swap_pages)
        self.sliding: KVCache = backend.kv_cache(
            windowed, self.first_swap, page_size, swap_pages, sliding=True
        )
        next_whole, next_sliding = count(), count()
        self._layers: list[KVLayer] = [
            self.whole.layer(next(next_whole))
            if spec.window is None
            else self.sliding.layer(next(next_sliding))
            for spec in layers
        ]

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes + self.sliding.nbytes

    def layer(self, index: int) -> KVLayer:
        return self._layers[index]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Of the layers that see everything; `sliding` copies its own."""
        self.whole.copy_pages(pairs)

    def move_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Likewise."""
        self.whole.move_slots(pairs)


def parts_of(kv: KVCache) -> tuple[KVCache, ...]:
    """The caches that a cache is made of: (whole, sliding), or itself."""
    return (kv.whole, kv.sliding) if isinstance(kv, SplitKVCache) else (kv,)
