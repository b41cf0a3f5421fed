"""Stop strings in a stream of text."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

_BITS = 21
"""Of a Unicode code point: node << _BITS | code is an edge's name, so one dict has the edges of all nodes."""


class StopAutomaton:
    """The automaton of Aho and Corasick (1975) over some strings. Immutable, so all may share it.

    A state is a node: the longest suffix of the text that begins one of the strings. It takes some 150 bytes
    for each character of the strings.

    Attributes:
        depth: of each node: how many characters that suffix has.
        match: the string that ends there, the longest of several; None: none does.
        fail: the node of the next shorter suffix that begins one of the strings; 0 is the empty one.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._edges: dict[int, int] = {}
        self.depth = array("i", [0])
        self.match: list[str | None] = [None]
        for string in strings:
            self._insert(string)
        self.fail = array("i", [0]) * len(self.depth)
        self._link()

    def __len__(self) -> int:
        return len(self.depth)

    def _insert(self, string: str) -> None:
        node = 0
        for char in string:
            edge = node << _BITS | ord(char)
            child = self._edges.get(edge)
            if child is None:
                child = self._edges[edge] = len(self.depth)
                self.depth.append(self.depth[node] + 1)
                self.match.append(None)
            node = child
        if node:
            self.match[node] = string

    def _link(self) -> None:
        """Where to go on when the next character does not fit: of short beginnings first."""
        edges = list(self._edges)  # of each node but the first, in order
        for node in np.argsort(self.depth, kind="stable").data[1:]:
            parent, code = edges[node - 1] >> _BITS, edges[node - 1] & (1 << _BITS) - 1
            if parent:
                self.fail[node] = self.step(self.fail[parent], code)
            if self.match[node] is None:
                self.match[node] = self.match[self.fail[node]]

    def step(self, state: int, code: int) -> int:
        """The state after one more character, given by its code."""
        edges = self._edges
        while True:
            following = edges.get(state << _BITS | code)
            if following is not None:
                return following
            if not state:
                return 0
            state = self.fail[state]


_making = threading.Lock()
_in_use: WeakValueDictionary[tuple[str, ...], StopAutomaton] = WeakValueDictionary()


def stop_automaton(stops: Sequence[str]) -> StopAutomaton:
    """The automaton of these strings: one for all that look for them at a time, made where nobody has it.

    Any thread may ask; it is gone when nobody uses it any more.
    """
    key = tuple(stops)
    found = _in_use.get(key)
    if found is None:
        found = _in_use.setdefault(key, StopAutomaton(key))
    return found


def prepared(stops: Sequence[str]) -> StopAutomaton:
    """stop_automaton() for a thread that may wait: where several want the same, one of them makes it."""
    with _making:
        return stop_automaton(stops)


class StopStrings:
    """Finds the first stop string, and holds back exactly what could still become one.

    The state of the automaton is the held text. So the answer does not depend on how the text was split into
    deltas. The stop string that ends first wins; of several that end together, the longest.

    Args:
        include: leave the stop string in the text.
        automaton: of these strings, where somebody has one.
    """

    def __init__(
        self, stops: Sequence[str], include: bool = False, automaton: StopAutomaton | None = None
    ) -> None:
        self._include = include
        self.automaton = automaton or stop_automaton(stops)
        self._state = 0
        self._held = ""
        self._found: str | None = None

    def feed(self, delta: str) -> tuple[str, str | None]:
        """(text that is safe to emit, the stop string found or None). After a match: ("", match)."""
        if self._found is not None:
            return "", self._found
        text = self._held + delta
        step, match = self.automaton.step, self.automaton.match
        for index, char in enumerate(delta, len(self._held) + 1):
            self._state = step(self._state, ord(char))
            stop = match[self._state]
            if stop is not None:
                self._found, self._held = stop, ""
                return text[: index if self._include else index - len(stop)], stop
        safe = len(text) - self.automaton.depth[self._state]
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """The text ended: what was held back is not a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
