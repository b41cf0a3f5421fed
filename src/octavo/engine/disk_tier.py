"""DiskTier: below the prefix cache, the pages that it evicted, in a file that outlives the engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.engine.page_pool import ensure
from octavo.engine.sources import Tier
from octavo.engine.step_plan import PageSave

MAX_FETCHES = 4
"""Requests whose pages are read and checked at a time; others wait until one of these is done."""


class PageFile(Protocol):
    """A file of blocks, a page each. A thread of its own reads and writes, and reports in news().

    The executor saves and loads (StepPlan.saves, StepPlan.loads). Each block that was saved or fetched is
    reported once.
    """

    @property
    def num_blocks(self) -> int: ...
    @property
    def max_saving(self) -> int:
        """How many pages may be waiting to be written; 0: the file takes no more."""
        ...

    def stored(self) -> Sequence[tuple[bytes, int]]:
        """(key, block) of what was found when it was opened, least recently used first."""
        ...

    def fetch(self, key: bytes, block: int) -> None:
        """Begin to read a block and to check that it is whole and still this key's."""
        ...

    def news(self) -> list[tuple[int, bool]]:
        """(block, whether its page is whole) of blocks saved or fetched since the last call."""
        ...

    def wait(self) -> None:
        """Return when news() has something, or nothing is being saved or fetched."""
        ...

    def clear(self) -> None:
        """Forget all blocks, those that are being saved or fetched included."""
        ...

    def close(self, stored: Sequence[tuple[bytes, int]]) -> None:
        """Write down what is stored, least recently used first, and let go of the file."""
        ...


@dataclass(slots=True, eq=False)
class StoredPage:
    """A page in the file.

    Attributes:
        users: fetches that hold it. Its block is not overwritten meanwhile.
        saving: it is being written. reading: it is being read and checked.
        lost: look() finds it no more. Its block is free when `users` is 0.
    """

    key: bytes
    block: int
    users: int = 0
    saving: bool = False
    reading: bool = False
    lost: bool = False


@dataclass(slots=True, eq=False)
class Fetch:
    """What the disk holds of a request's prefix, from page number `first` on. Held until released."""

    first: int
    pages: list[StoredPage]

    @property
    def ready(self) -> bool:
        """All of it has been read and checked."""
        return not any(stored.reading for stored in self.pages)

    def blocks(self, first: int) -> list[int]:
        """Blocks of the whole pages from this page number on; none if the fetch begins after it."""
        found: list[int] = []
        for stored in self.pages if first >= self.first else ():
            if stored.lost or stored.reading:
                break
            found.append(stored.block)
        return found[first - self.first :]


class DiskTier(Tier):
    """Which pages the file holds, and which of them go when it is full. Specification:

        tree evicts page 7 -> block 3     StepPlan.saves, in the step that gives the page to somebody else
        request begins      block 3 -> page 2   StepPlan.loads, in the step in which it enters

    1. A page is found by its key (engine.page_keys), which names salt and tokens; content is whole:
       scales of quantized pages are in it, and the file belongs to one model and one way to compute.
    2. A page is read and checked beside the engine's thread before a request begins with it; meanwhile
       the request is passed over. What fails the check is forgotten, and computed anew.
    3. At most PageFile.max_saving pages are on their way to the disk. What is evicted beyond that is not
       kept, the first pages of a prefix last: decoding never waits for a disk.
    4. When no block is free the one used longest ago is taken; a prefix counts as used after what
       continues it. Blocks that are held or on their way are left alone.
    """

    def __init__(self, file: PageFile) -> None:
        self.query_tokens = 0
        self.hit_tokens = 0
        self._file = file
        self._stored: OrderedDict[bytes, StoredPage] = OrderedDict()  # least recently used first
        self._by_block: dict[int, StoredPage] = {}  # lost ones included
        self._pending: list[PageSave] = []  # evicted, and not in a plan yet
        self._saving = 0  # pending ones included
        self._fetches: set[Fetch] = set()
        for key, block in file.stored():
            self._stored[key] = self._by_block[block] = StoredPage(key, block)
        self._free = [block for block in range(file.num_blocks - 1, -1, -1) if block not in self._by_block]

    @property
    def num_pages(self) -> int:
        """Pages that can be found, those on their way to the disk included."""
        return len(self._stored)

    # --- to the disk ----------------------------------------------------------------------------------

    def save(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """Queue pages to be saved. The caller leaves their content until the next plan has been executed.

        Args:
            keys: of consecutive pages of a prefix, first page first. The last pages are saved first.
        """
        new = [key for key in keys if key not in self._stored]
        room = set(new[: max(self._file.max_saving - self._saving, 0)])
        for key, page in zip(reversed(keys), reversed(pages), strict=True):
            if key in self._stored:
                self._stored.move_to_end(key)
            elif key in room and (block := self._take()) is not None:
                self._stored[key] = self._by_block[block] = StoredPage(key, block, saving=True)
                self._pending.append((page, block, key))
                self._saving += 1

    def next_saves(self) -> tuple[PageSave, ...]:
        """What the next plan has to save."""
        self.poll()
        saves = tuple(self._pending)
        self._pending.clear()
        return saves

    def keep(self, contents: Sequence[tuple[bytes, int]]) -> Iterator[tuple[PageSave, ...]]:
        """Save as many of these pages as the file holds, in portions. The caller executes each portion
        before it takes the next.

        Args:
            contents: (key, page), what was used last first.
        """
        left = list(contents[: self._file.num_blocks])
        while True:
            self.settle()
            if saves := self.next_saves():
                yield saves
            size = self._file.max_saving
            if not left or not size:
                return
            self.settle()
            portion = left[-size:]
            del left[-size:]
            self.save([key for key, _ in portion], [page for _, page in portion])

    def abandon(self, saves: Sequence[PageSave]) -> None:
        """The step with these saves failed: those that did not reach the file are forgotten."""
        if not saves:
            return
        self.settle()
        for _, block, key in saves:
            stored = self._by_block.get(block)
            if stored is not None and stored.saving and stored.key == key:
                self._arrived(stored, False)

    # --- from the disk --------------------------------------------------------------------------------

    def look(self, keys: Sequence[bytes], first: int) -> Fetch | None:
        """Begin to read the pages with keys[first:], up to the first that is not stored. None: not now."""
        if sum(not fetch.ready for fetch in self._fetches) >= MAX_FETCHES:
            return None
        found: list[StoredPage] = []
        for key in keys[first:]:
            stored = self._stored.get(key)
            if stored is None or stored.saving:
                break
            found.append(stored)
        for stored in found:
            stored.users += 1
            if not stored.reading:
                stored.reading = True
                self._file.fetch(stored.key, stored.block)
        for stored in reversed(found):
            self._stored.move_to_end(stored.key)
        fetch = Fetch(first, found)
        self._fetches.add(fetch)
        return fetch

    def release(self, fetch: Fetch) -> None:
        """The request of this fetch has loaded its pages, or never will."""
        self._fetches.remove(fetch)
        for stored in fetch.pages:
            stored.users -= 1
            self._free_if_lost(stored)

    def record(self, queried: int, hit: int) -> None:
        """Count a request's first look-up, in tokens."""
        self.query_tokens += queried
        self.hit_tokens += hit

    # --- both -----------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Take what the file reports. Returns whether it was anything."""
        news = self._file.news()
        for block, good in news:
            self._arrived(self._by_block[block], good)
        return bool(news)

    def wait(self) -> bool:
        """Wait until a page has been read. False: none is being read."""
        if all(fetch.ready for fetch in self._fetches):
            return False
        self._file.wait()
        return self.poll()

    def settle(self) -> None:
        """Wait until nothing is being saved or read."""
        self._file.wait()
        while self.poll():
            self._file.wait()

    def clear(self) -> None:
        """Forget all pages. Requests that have begun with some keep them."""
        for _, block, _ in self._pending:
            self._by_block[block].saving = False
            self._saving -= 1
        self._pending.clear()
        for stored in [*self._stored.values()]:
            self._lose(stored)
        self._file.clear()

    def close(self) -> None:
        self.settle()
        self._file.close(
            [(stored.key, stored.block) for stored in self._stored.values() if not stored.saving]
        )

    def _arrived(self, stored: StoredPage, good: bool) -> None:
        self._saving -= stored.saving
        stored.saving = stored.reading = False
        if good:
            self._free_if_lost(stored)
        else:
            self._lose(stored)

    def _take(self) -> int | None:
        """A block to write to."""
        if self._free:
            return self._free.pop()
        for stored in self._stored.values():
            if not (stored.users or stored.saving or stored.reading):
                self._lose(stored)
                return self._free.pop()
        return None

    def _lose(self, stored: StoredPage) -> None:
        if not stored.lost:
            del self._stored[stored.key]
            stored.lost = True
        self._free_if_lost(stored)

    def _free_if_lost(self, stored: StoredPage) -> None:
        if stored.lost and not (stored.users or stored.saving or stored.reading):
            del self._by_block[stored.block]
            self._free.append(stored.block)

    def check_integrity(self, held: Sequence[Fetch]) -> None:
        """Raise IntegrityError unless blocks are whole and exactly these fetches are held."""
        blocks = sorted([*self._by_block, *self._free])
        ensure(
            blocks == list(range(self._file.num_blocks)), "a block of the disk tier is lost or given twice"
        )
        found = {id(stored) for stored in self._by_block.values() if not stored.lost}
        ensure(found == {id(stored) for stored in self._stored.values()}, "a page on disk cannot be found")
        for key, stored in self._stored.items():
            ensure(
                stored.key == key and self._by_block[stored.block] is stored, "a page on disk has a wrong key"
            )
        ensure({id(f) for f in held} == {id(f) for f in self._fetches}, "a fetch is lost or nobody's")
        users = sum(len(fetch.pages) for fetch in self._fetches)
        ensure(users == sum(e.users for e in self._by_block.values()), "users of a block are miscounted")
        ensure(self._saving == sum(e.saving for e in self._by_block.values()), "saves are miscounted")
