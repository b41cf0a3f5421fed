"""ResponseStore: answers that later requests may go on from, in memory and bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

MAX_RESPONSES = 1_000
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """A response.

    Attributes:
        messages: the conversation up to and with its answer, without instructions.
        body: as it was sent. size: bytes of both, about.
    """

    messages: list[dict[str, Any]]
    body: dict[str, Any]
    size: int


class ResponseStore:
    """The latest responses; the oldest ones go when there are too many, or they take too much."""

    def __init__(self, most: int = MAX_RESPONSES, most_bytes: int = MAX_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[tuple[str, str], Stored] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, owner: str, name: str, stored: Stored) -> None:
        self._kept[owner, name] = stored
        self.nbytes += stored.size
        while len(self._kept) > self._most or self.nbytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.nbytes -= oldest.size

    def get(self, owner: str, name: str) -> Stored | None:
        return self._kept.get((owner, name))

    def remove(self, owner: str, name: str) -> bool:
        """Whether there was one."""
        stored = self._kept.pop((owner, name), None)
        if stored is not None:
            self.nbytes -= stored.size
        return stored is not None
