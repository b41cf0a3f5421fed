"""ResponseStore: answers that later requests may go on from, as JSON in memory, and bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_RESPONSES = 1_000
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A response, as JSON: the objects it is made of would take up to twenty times as much.

    Attributes:
        messages: the conversation up to and with its answer, without instructions.
        body: as it was sent.
        items: ids of its items, by which later requests may name them.
    """

    messages: bytes
    body: bytes
    items: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of both."""
        return len(self.messages) + len(self.body)


class ResponseStore:
    """The latest responses of each owner.

    Where there are too many, or they take too much, the oldest one goes of the owner whose take the most: so
    nobody pushes out what another one has stored before his own.
    """

    def __init__(self, most: int = MAX_RESPONSES, most_bytes: int = MAX_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: dict[str, OrderedDict[str, Stored]] = {}
        self._owned: dict[str, int] = {}  # bytes
        self._items: dict[tuple[str, str], str] = {}  # (owner, item) to the response that holds it
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Of all that is kept."""
        return sum(self._owned.values())

    def put(self, owner: str, name: str, stored: Stored) -> None:
        self.remove(owner, name)
        self._kept.setdefault(owner, OrderedDict())[name] = stored
        self._owned[owner] = self._owned.get(owner, 0) + stored.size
        self._items.update({(owner, item): name for item in stored.items})
        self._count += 1
        while self._count > self._most or self.nbytes > self._most_bytes:
            too_many = self._count > self._most
            largest = max(self._kept, key=lambda one: len(self._kept[one]) if too_many else self._owned[one])
            self.remove(largest, next(iter(self._kept[largest])))

    def get(self, owner: str, name: str) -> Stored | None:
        return self._kept[owner].get(name) if owner in self._kept else None

    def holding(self, owner: str, item: str) -> Stored | None:
        """The response that an item is of."""
        name = self._items.get((owner, item))
        return None if name is None else self.get(owner, name)

    def remove(self, owner: str, name: str) -> bool:
        """Whether there was one."""
        stored = self.get(owner, name)
        if stored is None:
            return False
        del self._kept[owner][name]
        for item in stored.items:
            self._items.pop((owner, item), None)
        self._count -= 1
        self._owned[owner] -= stored.size
        if not self._kept[owner]:
            del self._kept[owner], self._owned[owner]
        return True
