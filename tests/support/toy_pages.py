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
        kept: slot -> (key, content): what a restart finds, in the order of use that close() wrote down.
        saved, fetched: how many pages; damaged: how many of those were not good.
    """

    def __init__(
        self,
        num_slots: int,
        max_saving: int = 4,
        rng: random.Random | None = None,
        chance: float = 1.0,
        fails: float = 0.0,
        kept: dict[int, tuple[bytes, Content]] | None = None,
    ) -> None:
        self.num_slots, self.max_saving = num_slots, max_saving
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
        return ToyPages(self.num_slots, self.max_saving, self._rng, self._chance, self._fails, kept)

    # --- PageFile -------------------------------------------------------------------------------------

    def stored(self) -> Sequence[tuple[bytes, int]]:
        return [(key, slot) for slot, (key, _) in self.kept.items()]

    def fetch(self, key: bytes, slot: int) -> None:
        self._begin(slot, lambda: self._check(key, slot))

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
        self.kept = {slot: (key, self.kept[slot][1]) for key, slot in stored if self.kept[slot][0] == key}
        assert len(self.kept) == len(stored), "a page is called stored that is not"
        self.closed = True

    # --- for the executor -----------------------------------------------------------------------------

    def save(self, key: bytes, slot: int, content: Content) -> None:
        on_way = sum(slot is not None for slot, _ in self._jobs) + len(self._news)
        ensure(on_way < 2 * self.max_saving + self.num_slots, "too much is on its way")
        page = list(content)
        self._begin(slot, lambda: self._keep(key, slot, page))

    def page(self, slot: int) -> Content:
        ensure(slot in self._checked, f"slot {slot} is read unchecked")
        return self.kept[slot][1]

    def _begin(self, slot: int, job: Callable[[], bool]) -> None:
        ensure(not self.closed and 0 <= slot < self.num_slots, "a slot outside of the file, or no file")
        ensure(all(slot != other for other, _ in self._jobs), f"slot {slot} is on its way twice")
        self._jobs.append((slot, job))

    def _work(self) -> None:
        slot, job = self._jobs.pop(0)
        good = job()
        if slot is not None:
            self._news.append((slot, good))

    def _keep(self, key: bytes, slot: int, content: Content) -> bool:
        self._checked.discard(slot)
        if self._rng.random() < self._fails:
            self.kept[slot] = (b"half written", content)
            return False
        self.kept[slot] = (key, content)
        self.saved += 1
        return True

    def _check(self, key: bytes, slot: int) -> bool:
        self.fetched += 1
        good = slot in self.kept and self.kept[slot][0] == key and self._rng.random() >= self._fails
        self.damaged += not good
        (self._checked.add if good else self._checked.discard)(slot)
        return good

    def _forget(self) -> bool:
        self.kept.clear()
        return True
