"""Reads a regular expression into nodes; octavo.structured.schema.expressions says what is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from octavo.structured.schema.expression_nodes import (
    ANYTHING,
    BEGIN,
    CLASSES,
    EDGES,
    EMPTY,
    LAST,
    LETTERS,
    Node,
    Ranges,
    UnreadableError,
    asks_of,
    both,
    cat,
    common,
    counts_high,
    either,
    inverted,
    merged,
    nullable,
    other_than,
    power,
    set_of,
    star,
)

MAX_LENGTH = 2_000
"""Characters of an expression that is read."""
MAX_REPEATED = 64
"""A higher count is no chain of states; the expression is then written as it was read, but for look-ahead."""
MAX_POWER = 1_000
_CODE = re.compile(r"u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})")
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_COUNTED = re.compile(r"\{([0-9]{1,4})(,)?([0-9]{1,4})?\}")
_MARKS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
Build = Callable[[Node], Node]
"""What a part becomes before what follows it."""


class Reader:
    """Reads an expression into a function of what follows: a look-ahead is about all of that."""

    def __init__(self, pattern: str, at: int = 0, anchored: bool = True, ahead: bool = False) -> None:
        self._text, self.at = pattern, at
        self._anchored = anchored  # a ^ that it begins with holds of all of it
        self._ahead = ahead  # an edge behind a repeated set is read as look-ahead
        self._set: tuple[Ranges, int, int] | None = None  # the last part, if it is such a one
        self._looks = 0  # parts that say something of what follows
        if len(pattern) > MAX_LENGTH:
            raise UnreadableError

    def _next(self, *texts: str) -> str | None:
        for text in texts:
            if self._text.startswith(text, self.at):
                self.at += len(text)
                return text
        return None

    def alternatives(self) -> Build:
        parts = [self._sequence()]
        while self._next("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else lambda k: either(*(part(k) for part in parts))

    def _sequence(self) -> Build:
        parts: list[Build] = []
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            last = self._set
            self._set = None
            if self._ahead and parts and last is not None and (edge := self._next(*EDGES)) is not None:
                self._looks += 1
                parts[-1] = _until_edge(*last, edge == r"\b")
            else:
                parts.append(self._repeated())

        def build(k: Node) -> Node:
            for part in reversed(parts):
                k = part(k)
            return k

        return build

    def _repeated(self) -> Build:
        before, start = self._looks, self.at
        part = self.atom()
        ranges = self._set[0] if self._set is not None else None
        self._set = None
        around = self._text[start : self.at]
        if around in ("^", *EDGES) or around.startswith("(?<"):
            if self._text[self.at :][:1] in tuple("*+?{"):
                raise UnreadableError
            return part
        counted = _COUNTED.match(self._text, self.at)
        if (mark := self._next("*", "+", "?")) is not None:
            low, high = _MARKS[mark]
        elif counted is not None:
            self.at = counted.end()
            low = int(counted[1])
            high = int(counted[3]) if counted[3] else None if counted[2] else low
        else:
            low, high = 1, 1
        if mark is not None or counted is not None:
            if self._next("*", "+"):
                raise UnreadableError
            self._next("?")  # lazy: the same strings
        if ranges is not None and low and high:
            self._set = ranges, low, high
        if (low, high) == (1, 1):
            return part
        if (low, high) == (0, 1):
            return lambda k: either(part(k), k)
        if self._looks == before:
            return _powers(part(EMPTY), low, high)
        if (low, high) != (0, None):
            raise UnreadableError
        return lambda k: _anywhere(part, k)

    def atom(self) -> Build:
        if self._next("^"):
            return (lambda k: k) if self._anchored and self.at == 1 else lambda k: cat(BEGIN, k)
        if (edge := self._next(*EDGES)) is not None:
            return lambda k: cat(EDGES[edge], k)
        if self._next("$"):
            self._looks += 1
            return lambda k: both(k, EMPTY)
        if (look := self._next("(?<=", "(?<!")) is not None:
            behind: Node = ("behind", self._ranges())
            if not self._next(")"):
                raise UnreadableError
            return lambda k: cat(behind if look == "(?<=" else ("unlike", behind[1]), k)
        if (look := self._next("(?=", "(?!")) is not None:
            self._looks += 1
            inner = self._group()(ANYTHING)
            return lambda k: both(k, inner if look == "(?=" else other_than(inner))
        if self._next("(?:", "("):
            if self._next("?"):
                raise UnreadableError
            return self._group()
        ranges = self._ranges()
        self._set = ranges, 1, 1
        return lambda k: cat(set_of(ranges), k)

    def _group(self) -> Build:
        inner = self.alternatives()
        if not self._next(")"):
            raise UnreadableError
        self._set = None
        return inner

    def _ranges(self) -> Ranges:
        if self._next("."):
            return inverted(((10, 10),))
        if self._next("["):
            return self._class()
        return self._character(r"*+?{}()|[]^$")

    def _class(self) -> Ranges:
        is_inverted, found = self._next("^"), list[tuple[int, int]]()
        while not self._next("]"):
            if self.at >= len(self._text):
                raise UnreadableError
            one = self._character("")
            if (
                _is_one(one)
                and self._text[self.at : self.at + 1] == "-"
                and self._text[self.at + 1 :][:1] != "]"
            ):
                self.at += 1
                other = self._character("")
                if not _is_one(other) or other < one:
                    raise UnreadableError
                one = ((one[0][0], other[0][0]),)
            found += one
        return inverted(merged(found)) if is_inverted else merged(found)

    def _character(self, special: str) -> Ranges:
        one = self._text[self.at : self.at + 1]
        self.at += 1
        if one == "\\":
            one = self._text[self.at : self.at + 1]
            self.at += 1
            if one in CLASSES:
                return CLASSES[one]
            if one in _CONTROLS:
                return ((_CONTROLS[one], _CONTROLS[one]),)
            if (code := _CODE.match(self._text, self.at - 1)) is not None:
                self.at = code.end()
                at = int(code[1] or code[2] or code[3], 16)
                if at > LAST or 0xD800 <= at <= 0xDFFF:
                    raise UnreadableError
                return ((at, at),)
            if not one or one.isalnum():
                raise UnreadableError
        elif not one or one in special:
            raise UnreadableError
        return ((ord(one), ord(one)),)


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _powers(inner: Node, low: int, high: int | None) -> Build:
    """A part so many times.

    Raises:
        UnreadableError: too many.
    """
    if max(low, high or 0) > (MAX_POWER if not asks_of(inner) else MAX_REPEATED):
        raise UnreadableError
    if max(low, high or 0) > MAX_REPEATED:
        counted = power(inner, low, low if high is None else high)
        rest = star(inner) if high is None else EMPTY
        return lambda k: cat(counted, cat(rest, k))

    def build(k: Node) -> Node:
        if high is None:
            found = cat(star(inner), k)
        else:
            found = k
            for _ in range(high - low):
                found = either(cat(inner, found), k)
        for _ in range(low):
            found = cat(inner, found)
        return found

    return build


def _until_edge(ranges: Ranges, low: int, high: int, edge: bool) -> Build:
    """A set so many times, and behind the last one of them an edge of a word, or none."""
    letters = common(ranges, LETTERS)
    others = common(ranges, CLASSES["W"])
    before = _powers(set_of(ranges), low - 1, high - 1)

    def build(k: Node) -> Node:
        word = cat(set_of(LETTERS), ANYTHING)
        to_other, to_word = both(k, other_than(word)), both(k, word)
        if not edge:
            to_other, to_word = to_word, to_other
        return either(before(cat(set_of(letters), to_other)), before(cat(set_of(others), to_word)))

    return build


_MARK: Node = ("set", ((-1, -1),))
"""A character that no string has."""


def _anywhere(part: Build, k: Node) -> Node:
    """(?:(?!word).)* at the end: no word begins anywhere."""
    found = part(_MARK)
    if k != EMPTY or found[0] != "and" or len(found[1]) != 2:
        raise UnreadableError
    plain = [each for each in found[1] if each[0] == "cat" and each[1][0] == "set" and each[2] == _MARK]
    words = [each for each in found[1] if each[0] == "not"]
    if len(plain) != 1 or len(words) != 1 or nullable(words[0][1]):
        raise UnreadableError
    return both(star(plain[0][1]), other_than(cat(ANYTHING, words[0][1])))


@lru_cache(256)
def read(pattern: str) -> Node:
    """The strings in which the expression finds something."""
    anchored = pattern.startswith("^") and not splits(pattern)  # or ^ is the first alternative's alone
    reader = Reader(pattern, anchored=anchored)
    build = reader.alternatives()
    if reader.at != len(pattern):
        raise UnreadableError
    found = build(ANYTHING)
    if asks_of(found) and counts_high(found):
        found = Reader(pattern, anchored=anchored, ahead=True).alternatives()(ANYTHING)
    return found if anchored else cat(ANYTHING, found)


def splits(pattern: str) -> bool:
    """Whether there is an alternative outside all groups."""
    reader = Reader(pattern)
    reader._sequence()
    return reader.at < len(pattern)
