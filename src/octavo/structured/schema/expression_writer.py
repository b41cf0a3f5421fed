"""Writes nodes as a regular expression: as an automaton, state by state, or as they are."""

from __future__ import annotations

import heapq
import re

from octavo.structured.schema.expression_nodes import (
    ALL,
    LAST,
    NO_CHARACTER,
    NONE,
    Node,
    NothingError,
    Ranges,
    UnreadableError,
    asks_of,
    begun,
    counts_high,
    derivative,
    heads,
    inverted,
    is_in,
    kinds_of,
    merged,
    nullable,
)

MAX_STATES = 400
MAX_WRITTEN = 12_000
"""Characters of an expression that is written."""
MAX_STEPS = 60_000
"""Parts of an expression that are looked at for its automaton, each of a microsecond."""


def written(start: Node) -> str:
    """An expression of the same strings, from ^ to $."""
    kinds = kinds_of(start)
    if not counts_high(start):
        try:
            return _of_automaton(start, kinds)
        except NothingError:
            raise
        except UnreadableError:
            pass
    if (found := _Spelling(kinds).text(start)) is None:
        raise NothingError
    return f"^(?:{found})$"


def _of_automaton(start: Node, kinds: list[Ranges]) -> str:
    number: dict[tuple[Node, tuple[bool, ...]], int] = {(start, _like(start, NO_CHARACTER)): 0}
    states = [(start, NO_CHARACTER)]
    edges: list[dict[int, Ranges]] = []
    steps = 0
    members: dict[Ranges, int] = {}  # of each set, which kinds are in it, as bits
    while len(edges) < len(states):
        state, before = states[len(edges)]
        out: dict[int, list[tuple[int, int]]] = {}
        groups = [(1 << len(kinds)) - 1]
        for ranges in heads(state):
            if ranges not in members:
                members[ranges] = sum(is_in(kind[0][0], ranges) << at for at, kind in enumerate(kinds))
            inside = members[ranges]
            groups = [part for each in groups for part in (each & inside, each & ~inside) if part]
        for group in sorted(groups, key=lambda each: each & -each):  # by their first kind
            alike = [kind for at, kind in enumerate(kinds) if group >> at & 1]
            known: dict[Node, Node] = {}
            to = begun(derivative(state, alike[0][0][0], known, before))
            steps += len(known) + 1
            if to == NONE:
                continue
            asks = bool(asks_of(to))
            for kind in alike:
                if asks or kind is alike[0]:
                    key = to, _like(to, kind[0][0]) if asks else ()
                    if key not in number:
                        number[key] = len(states)
                        states.append((to, kind[0][0]))
                        if len(states) > MAX_STATES:
                            raise UnreadableError
                    ways = out.setdefault(number[key], [])
                ways.extend(kind)
        if steps > MAX_STEPS:
            raise UnreadableError
        edges.append({to: merged(ranges) for to, ranges in out.items()})
    return _eliminated(edges, [at for at, (node, before) in enumerate(states) if nullable(node, before)])


def _like(a: Node, before: int) -> tuple[bool, ...]:
    """What it asks of the character before."""
    return tuple(is_in(before, ranges) for ranges in sorted(asks_of(a)))


class _Spelling:
    """Nodes written as they are, and what looks ahead by a derivative for each kind of character.

    For expressions of many counted parts, whose automaton is long to write, after a short look-ahead.
    """

    def __init__(self, kinds: list[Ranges]) -> None:
        self._kinds = kinds
        self._left = MAX_STATES
        self._known: dict[Node, str | None] = {}

    def text(self, a: Node) -> str | None:
        """An expression; None: nothing matches.

        Raises:
            UnreadableError: too long, or there is no end of derivatives.
        """
        if a not in self._known:
            found = self._known[a] = self._text(a)
            if found is not None and len(found) > MAX_WRITTEN:
                raise UnreadableError
        return self._known[a]

    def _text(self, a: Node) -> str | None:
        self._left -= 1
        if self._left < 0 or asks_of(a):
            raise UnreadableError
        match a[0]:
            case "empty":
                return ""
            case "set":
                return _class_of(a[1])
            case "cat":
                one, other = self.text(a[1]), self.text(a[2])
                return None if one is None or other is None else _piece(one) + _piece(other)
            case "or":
                return _alternatives(sorted(text for text in map(self.text, a[1]) if text is not None))
            case "star":
                inner = self.text(a[1])
                return "" if inner is None else f"{_atom(inner)}*"
            case "power":
                inner = self.text(a[1])
                if inner is None:
                    return None if a[2] else ""
                return f"{_atom(inner)}{{{a[2]},{a[3]}}}"
        ways: dict[Node, list[tuple[int, int]]] = {}
        for kind in self._kinds:
            if (to := derivative(a, kind[0][0], {})) != NONE:
                ways.setdefault(to, []).extend(kind)
        parts = [""] if nullable(a) else []
        for to, ranges in ways.items():
            if (rest := self.text(to)) is not None:
                parts.append(_class_of(merged(ranges)) + _piece(rest))
        return _alternatives(parts)


def _alternatives(parts: list[str]) -> str | None:
    return "|".join(parts) if parts else None


def _eliminated(edges: list[dict[int, Ranges]], ends: list[int]) -> str:
    """States are taken out one after the other; what led through one is written on the way around it."""
    begin, end = len(edges), len(edges) + 1
    ways: dict[int, dict[int, str]] = {
        state: {to: _class_of(ranges) for to, ranges in out.items()} for state, out in enumerate(edges)
    }
    for state in ends:
        ways[state][end] = ""
    ways |= {begin: {0: ""}, end: {}}
    into: dict[int, set[int]] = {state: set() for state in ways}
    for state, out in ways.items():
        for to in out:
            into[to].add(state)

    def made(state: int) -> int:
        """How many ways around a state there are."""
        to, out = into[state], ways[state]
        return (len(to) - (state in to)) * (len(out) - (state in out))

    waiting = [(made(state), state) for state in range(len(edges))]  # some of them more than once
    heapq.heapify(waiting)
    while waiting:
        count, state = heapq.heappop(waiting)
        if state not in ways or count != made(state):
            continue
        touched = (into[state] | ways[state].keys()) - {state, begin, end}
        loop = ways[state].pop(state, None)
        into[state].discard(state)
        around = "" if loop is None else f"{_atom(loop)}*"
        for before in into[state]:
            first = ways[before].pop(state)
            for after, last in ways[state].items():
                way = _piece(first) + around + _piece(last)
                known = ways[before].get(after)
                ways[before][after] = way if known is None else f"{known}|{way}"
                into[after].add(before)
                if len(ways[before][after]) > MAX_WRITTEN:
                    raise UnreadableError
        for after in ways[state]:
            into[after].discard(state)
        del ways[state]
        for each in touched:
            heapq.heappush(waiting, (made(each), each))
    if end not in ways[begin]:
        raise NothingError
    return f"^(?:{ways[begin][end]})$"


_ONE = re.compile(r"\[(?:[^\]\\]|\\.)*+\]|\\u\{[0-9A-F]+\}|\\.|[^\\\[\]()|]", re.DOTALL)


def _piece(text: str) -> str:
    return f"(?:{text})" if "|" in text else text


def _atom(text: str) -> str:
    return text if _ONE.fullmatch(text) else f"(?:{text})"


def _class_of(ranges: Ranges) -> str:
    if ranges == ALL:
        return r"[\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _shown(ranges[0][0])
    is_inverted = ranges[-1][1] == LAST
    shown = "".join(
        _shown(low) if low == high else f"{_shown(low)}-{_shown(high)}"
        for low, high in (inverted(ranges) if is_inverted else ranges)
    )
    return f"[{'^' * is_inverted}{shown}]"


def _shown(at: int) -> str:
    one = chr(at)
    return one if at < 128 and one.isalnum() else rf"\u{{{at:X}}}"
