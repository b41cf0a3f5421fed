"""Expressions as nodes: made of others, what they ask of what is around them, what follows a character."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

LAST = 0x10FFFF

# Nodes: ("empty",), ("set", ranges), ("cat", a, b), ("or", parts), ("and", parts), ("not", a), ("star", a),
# ("power", a, least, most) of what is counted high, and those that depend on what is around them: ("begin",),
# ("edge",), ("inner",) and ("behind", ranges) for ^, \b, \B and (?<=[...]).
Node = tuple[Any, ...]
Ranges = tuple[tuple[int, int], ...]
NONE: Node = ("or", frozenset())
EMPTY: Node = ("empty",)
ALL: Ranges = ((0, LAST),)


class UnreadableError(Exception):
    """The expression uses something else, or would be too large."""


class NothingError(UnreadableError):
    """No string matches."""


def set_of(ranges: Ranges) -> Node:
    return ("set", ranges) if ranges else NONE


def cat(a: Node, b: Node) -> Node:
    if a == NONE or b == NONE:
        return NONE
    if a == EMPTY:
        return b
    if b == EMPTY:
        return a
    return ("cat", a[1], cat(a[2], b)) if a[0] == "cat" else ("cat", a, b)


def _joined(kind: str, parts: Iterator[Node] | tuple[Node, ...], neutral: Node, zero: Node) -> Node:
    found: set[Node] = set()
    for part in parts:
        if part == zero:
            return zero
        if part != neutral:
            found |= part[1] if part[0] == kind else {part}
    if len(found) == 1:
        return found.pop()
    return (kind, frozenset(found)) if found else neutral


def either(*parts: Node) -> Node:
    return _joined("or", parts, NONE, ANYTHING)


def both(*parts: Node) -> Node:
    return _joined("and", parts, ANYTHING, NONE)


def other_than(a: Node) -> Node:
    return a[1] if a[0] == "not" else ANYTHING if a == NONE else NONE if a == ANYTHING else ("not", a)


def star(a: Node) -> Node:
    return EMPTY if a in (EMPTY, NONE) else a if a[0] == "star" else ("star", a)


def power(a: Node, low: int, high: int) -> Node:
    return EMPTY if not high or a == EMPTY else a if low == high == 1 else ("power", a, low, high)


ANYTHING: Node = ("star", ("set", ALL))
BEGIN: Node = ("begin",)
EDGES: dict[str, Node] = {r"\b": ("edge",), r"\B": ("inner",)}
NO_CHARACTER = -1
"""Instead of a character before the first one, or behind the last."""


def inverted(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for low, high in ranges:
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    return (*found, (at, LAST)) if at <= LAST else tuple(found)


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def common(one: Ranges, other: Ranges) -> Ranges:
    return inverted(merged([*inverted(one), *inverted(other)]))


SPACES: Ranges = merged(
    [(9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
)  # fmt: skip
DIGITS: Ranges = ((48, 57),)
LETTERS: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
CLASSES: dict[str, Ranges] = {"d": DIGITS, "w": LETTERS, "s": SPACES}
CLASSES |= {name.upper(): inverted(ranges) for name, ranges in CLASSES.items()}


@lru_cache(4_000)
def asks_of(a: Node) -> frozenset[Ranges]:
    """Sets of characters: whether the one before is of them decides what it matches. "" is of none."""
    match a[0]:
        case "empty" | "set":
            return frozenset()
        case "or" | "and":
            return frozenset[Ranges]().union(*map(asks_of, a[1]))
        case "begin":
            return frozenset([ALL])
        case "edge" | "inner":
            return frozenset([LETTERS])
        case "behind" | "unlike":
            return frozenset([a[1]])
        case "cat":
            return asks_of(a[1]) | asks_of(a[2])
    return asks_of(a[1])


@lru_cache(4_000)
def counts_high(a: Node) -> bool:
    """Whether a part of it is counted high."""
    match a[0]:
        case "power":
            return True
        case "or" | "and":
            return any(map(counts_high, a[1]))
        case "cat":
            return counts_high(a[1]) or counts_high(a[2])
        case "not" | "star":
            return counts_high(a[1])
    return False


@lru_cache(4_000)
def nullable(a: Node, before: int = NO_CHARACTER, behind: int = NO_CHARACTER) -> bool:
    """Whether it matches nothing between these characters."""
    match a[0]:
        case "empty" | "star":
            return True
        case "set":
            return False
        case "cat":
            return nullable(a[1], before, behind) and nullable(a[2], before, behind)
        case "or":
            return any(nullable(part, before, behind) for part in a[1])
        case "and":
            return all(nullable(part, before, behind) for part in a[1])
        case "power":
            return not a[2] or nullable(a[1], before, behind)
        case "begin":
            return before == NO_CHARACTER
        case "edge" | "inner":
            changes = is_in(before, LETTERS) is not is_in(behind, LETTERS)
            return changes if a[0] == "edge" else not changes
        case "behind" | "unlike":
            found = is_in(before, a[1])
            return found if a[0] == "behind" else not found
    return not nullable(a[1], before, behind)


def is_in(at: int, ranges: Ranges) -> bool:
    return any(low <= at <= high for low, high in ranges)


def derivative(a: Node, at: int, known: dict[Node, Node], before: int = NO_CHARACTER) -> Node:
    """What may follow a character, which stands behind `before`."""
    if a in known:
        return known[a]
    match a[0]:
        case "set":
            found = EMPTY if is_in(at, a[1]) else NONE
        case "cat":
            found = cat(derivative(a[1], at, known, before), a[2])
            if nullable(a[1], before, at):
                found = either(found, derivative(a[2], at, known, before))
        case "or":
            found = either(*(derivative(part, at, known, before) for part in a[1]))
        case "and":
            found = both(*(derivative(part, at, known, before) for part in a[1]))
        case "star":
            found = cat(derivative(a[1], at, known, before), a)
        case "power":
            rest = power(a[1], max(0, a[2] - 1), a[3] - 1)
            found = cat(derivative(a[1], at, known, before), rest)
        case "not":
            found = other_than(derivative(a[1], at, known, before))
        case _:
            found = NONE
    known[a] = found
    return found


@lru_cache(4_000)
def heads(a: Node) -> frozenset[Ranges]:
    """Sets of characters: of which of them the first one is decides what may follow it."""
    match a[0]:
        case "set":
            return frozenset([a[1]])
        case "or" | "and":
            return frozenset[Ranges]().union(*map(heads, a[1]))
        case "cat":
            here = heads(a[1])
            return here | heads(a[2]) if nullable(a[1]) or asks_of(a[1]) else here
        case "edge" | "inner":
            return frozenset([LETTERS])
        case "star" | "not" | "power":
            return heads(a[1])
    return frozenset()


def begun(a: Node) -> Node:
    """The same behind a character, where nothing begins."""
    if ALL not in asks_of(a):
        return a
    match a[0]:
        case "begin":
            return NONE
        case "cat":
            return cat(begun(a[1]), begun(a[2]))
        case "or":
            return either(*map(begun, a[1]))
        case "and":
            return both(*map(begun, a[1]))
        case "star":
            return star(begun(a[1]))
        case "not":
            return other_than(begun(a[1]))
    return a


def kinds_of(a: Node) -> list[Ranges]:
    """Sets of characters that the expression treats alike."""
    waiting, sets = [a], set[Ranges]()
    sets.update(asks_of(a))
    seen = set[Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node[0] == "set":
            sets.add(node[1])
        elif node[0] in ("or", "and"):
            waiting += node[1]
        elif node[0] in ("cat", "not", "star", "power"):
            waiting += [part for part in node[1:] if isinstance(part, tuple)]
    edges = sorted({0, *(edge for ranges in sets for low, high in ranges for edge in (low, high + 1))})
    # Between two edges all characters are in the same sets: these are noted, a bit for each, where it begins.
    number = {edge: at for at, edge in enumerate(edges)}
    said = [0] * len(edges)
    for bit, ranges in enumerate(sets):
        for low, high in ranges:
            for at in range(number[low], number[high + 1]):
                said[at] |= 1 << bit
    alike: dict[int, list[tuple[int, int]]] = {}
    for at, (low, high) in enumerate(pairwise([*edges, LAST + 1])):
        if low < high:
            alike.setdefault(said[at], []).append((low, high - 1))
    return [merged(ranges) for ranges in alike.values()]
