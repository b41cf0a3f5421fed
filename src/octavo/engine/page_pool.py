"""PagePool: who owns how many references to which page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class IntegrityError(RuntimeError):
    """An invariant of the engine is broken: a bug here, never the caller's fault."""


def ensure(condition: bool, message: str) -> None:
    """Raise IntegrityError unless the condition holds (asserts vanish under -O)."""
    if not condition:
        raise IntegrityError(message)


class PagePool:
    """Pages 0..num_pages-1 with reference counts. A page is free when nobody refers to it.

    Free pages form a stack: what was freed last is given out first. So a pool that is never full
    touches only as much memory as it needed at its peak, and what it touches is warm.

    Attributes:
        on_free: is told of pages that have become free.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self.on_free: Callable[[Sequence[int]], None] | None = None

    @property
    def num_free(self) -> int:
        return len(self._free)

    def references(self, page: int) -> int:
        return self._references[page]

    def allocate(self, count: int) -> list[int]:
        """Take free pages, each with one reference.

        Raises:
            IntegrityError: fewer than count are free; ask num_free first.
        """
        if not 0 <= count <= len(self._free):
            raise IntegrityError(f"{count} pages wanted, {len(self._free)} are free")
        if count == 0:
            return []
        pages = self._free[-count:]
        del self._free[-count:]
        pages.reverse()
        for page in pages:
            self._references[page] = 1
        return pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add a reference to each of these pages, which are in use."""
        for page in pages:
            if self._references[page] <= 0:
                raise IntegrityError(f"page {page} is free and cannot be shared")
            self._references[page] += 1

    def release(self, pages: Sequence[int]) -> int:
        """Drop a reference to each of these pages. Returns how many became free.

        The last of the list is freed first, so that the first is given out again first.
        """
        before = len(self._free)
        for page in reversed(pages):
            count = self._references[page]
            if count <= 0:
                raise IntegrityError(f"page {page} was freed twice")
            self._references[page] = count - 1
            if count == 1:
                self._free.append(page)
        if self.on_free is not None:
            self.on_free(self._free[before:])
        return len(self._free) - before

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the free list and the counts agree."""
        free = set(self._free)
        ensure(len(free) == len(self._free), "a page is twice in the free list")
        for page, count in enumerate(self._references):
            ensure(count >= 0, f"page {page} has {count} references")
            ensure(
                (count == 0) == (page in free), f"page {page} has {count} references, free: {page in free}"
            )
