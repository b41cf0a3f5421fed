"""Stop strings in a stream of text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string, and holds back exactly what could still become one.

    An automaton (Aho and Corasick, 1975) whose state is the longest suffix of the text that begins
    a stop string: the held text. So the answer does not depend on how the text was split into
    deltas. The stop string that ends first wins; of several that end together, the longest.

    Args:
        include: leave the stop string in the text.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._include = include
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fail = [0] * len(self._next)
        self._link()
        self._state = 0
        self._held = ""
        self._found: str | None = None

    def _insert(self, stop: str) -> None:
        node = 0
        for char in stop:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._match.append(None)
            node = self._next[node][char]
        if node:
            self._match[node] = stop

    def _link(self) -> None:
        """Breadth first: where to go on when the next character does not fit."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                self._fail[child] = self._step(self._fail[node], char)
                queue.append(child)
            if self._match[node] is None:
                self._match[node] = self._match[self._fail[node]]

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    def feed(self, delta: str) -> tuple[str, str | None]:
        """(text that is safe to emit, the stop string found or None). After a match: ("", match)."""
        if self._found is not None:
            return "", self._found
        text = self._held + delta
        for index, char in enumerate(delta, len(self._held) + 1):
            self._state = self._step(self._state, char)
            stop = self._match[self._state]
            if stop is not None:
                self._found, self._held = stop, ""
                return text[: index if self._include else index - len(stop)], stop
        safe = len(text) - self._depth[self._state]
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """The text ended: what was held back is not a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
