"""A file of pages without a disk, for the toy executor: slow, full and damaged as chance has it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from octavo.engine.page_pool import ensure

Content = list[int | None]


class ToyPages:
    """An engine.disk_tier.PageFile that checks how it is used. Jobs are done when chance or wait() says so.

    Args:
        chance: how likely a job is to be done when somebody asks for news.
        fails: how likely a save is to fail, and a page that is read to be damaged.

    Attributes:
        kept: block -> (key, content): what a restart finds, in the order of use that close() wrote down.
        saved, fetched: how many pages; damaged: how many of those were not good.
    """

    def __init__(
        self,
        num_blocks: int,
        max_saving: int = 4,
        rng: random.Random | None = None,
        chance: float = 1.0,
        fails: float = 0.0,
        kept: dict[int, tuple[bytes, Content]] | None = None,
    ) -> None:
        self.num_blocks, self.max_saving = num_blocks, max_saving
        self.kept = kept or {}
        self.saved = self.fetched = self.damaged = 0
        self.closed = False
        self._rng, self._chance, self._fails = rng or random.Random(0), chance, fails
        self._jobs: list[tuple[int | None, Callable[[], bool]]] = []
        self._news: list[tuple[int, bool]] = []
        self._checked: set[int] = set()

    def reopened(self) -> ToyPages:
        """What the next process finds."""
        assert self.closed
        kept = dict(self.kept)
        return ToyPages(self.num_blocks, self.max_saving, self._rng, self._chance, self._fails, kept)

    # --- PageFile -------------------------------------------------------------------------------------

    def stored(self) -> Sequence[tuple[bytes, int]]:
        return [(key, block) for block, (key, _) in self.kept.items()]

    def fetch(self, key: bytes, block: int) -> None:
        self._begin(block, lambda: self._check(key, block))

    def news(self) -> list[tuple[int, bool]]:
        while self._jobs and self._rng.random() < self._chance:
            self._work()
        news, self._news = self._news, []
        return news

    def wait(self) -> None:
        while self._jobs and not self._news:
            self._work()

    def clear(self) -> None:
        self._jobs.append((None, self._forget))

    def close(self, stored: Sequence[tuple[bytes, int]]) -> None:
        assert not self._jobs, "the file is closed while something is on its way"
        self.kept = {block: (key, self.kept[block][1]) for key, block in stored if self.kept[block][0] == key}
        assert len(self.kept) == len(stored), "a page is called stored that is not"
        self.closed = True

    # --- for the executor -----------------------------------------------------------------------------

    def save(self, key: bytes, block: int, content: Content) -> None:
        on_way = sum(block is not None for block, _ in self._jobs) + len(self._news)
        ensure(on_way < 2 * self.max_saving + self.num_blocks, "too much is on its way")
        page = list(content)
        self._begin(block, lambda: self._keep(key, block, page))

    def page(self, block: int) -> Content:
        ensure(block in self._checked, f"block {block} is read unchecked")
        return self.kept[block][1]

    def _begin(self, block: int, job: Callable[[], bool]) -> None:
        ensure(not self.closed and 0 <= block < self.num_blocks, "a block outside of the file, or no file")
        ensure(all(block != other for other, _ in self._jobs), f"block {block} is on its way twice")
        self._jobs.append((block, job))

    def _work(self) -> None:
        block, job = self._jobs.pop(0)
        good = job()
        if block is not None:
            self._news.append((block, good))

    def _keep(self, key: bytes, block: int, content: Content) -> bool:
        self._checked.discard(block)
        if self._rng.random() < self._fails:
            self.kept[block] = (b"half written", content)
            return False
        self.kept[block] = (key, content)
        self.saved += 1
        return True

    def _check(self, key: bytes, block: int) -> bool:
        self.fetched += 1
        good = block in self.kept and self.kept[block][0] == key and self._rng.random() >= self._fails
        self.damaged += not good
        (self._checked.add if good else self._checked.discard)(block)
        return good

    def _forget(self) -> bool:
        self.kept.clear()
        return True
