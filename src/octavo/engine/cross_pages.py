"""CrossPages: the pages of encoder outputs, written once and shared while anybody reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.engine.page_pool import PagePool, ensure


@dataclass(slots=True, eq=False)
class CrossEntry:
    """Keys and values of one encoder input.

    Attributes:
        key: names the input (and whoever may share it).
        users: running requests that read it.
        written: a result has confirmed the step in which the encoder computed it. Until then only
            requests of that very step may share it: should the step fail, all of them end.
    """

    key: str | None
    pages: tuple[int, ...]
    users: int = 0
    written: bool = False


class CrossPages:
    """Encoder inputs in use, by key. An entry lives from its first user to its last one.

    What the n samples of a request and equal inputs that run together need is computed once. The
    pages of an entry have one reference, the entry's; nobody writes to them after its first step.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._entries: dict[str | None, CrossEntry] = {}

    def find(self, key: str | None) -> CrossEntry | None:
        return self._entries.get(key)

    def entries(self) -> Sequence[CrossEntry]:
        return tuple(self._entries.values())

    def join(self, key: str | None, pages: Sequence[int]) -> CrossEntry:
        """One user more of the entry with this key, which is made of these pages if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = CrossEntry(key, tuple(pages))
        entry.users += 1
        return entry

    def leave(self, entry: CrossEntry) -> None:
        """One user less; the last one frees the pages."""
        entry.users -= 1
        if entry.users == 0:
            del self._entries[entry.key]
            self._pool.release(entry.pages)

    def check_integrity(self, used: Iterable[CrossEntry | None]) -> None:
        """Raise IntegrityError unless users and entries agree."""
        counted = Counter(used)
        ensure(counted[None] == 0, "a running request reads no encoder output")
        ensure(set(counted) == set(self._entries.values()), "an encoder output is lost or nobody's")
        for key, entry in self._entries.items():
            ensure(entry.key == key and entry.users == counted[entry], "an encoder output is miscounted")
