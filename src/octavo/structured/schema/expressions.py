"""Regular expressions without look-ahead, and expressions of what another one does not match.

llguidance's expressions have neither look-ahead nor complement. Both are regular all the same: an expression
is read, turned into an automaton by derivatives (Brzozowski, "Derivatives of regular expressions", 1964), in
which conjunction and complement cost nothing, and the automaton is written as an expression, state by state.

What is read is what schemas write: characters and sets, groups, repetitions, ^, $, \\b, \\B, look-ahead that
is not repeated (but for (?:(?!word).)*, which forbids a word anywhere), and look-behind for one character.
The rest stays. What looks behind asks which character stands before it, so a state of the automaton knows
what it is like where there is such a part left.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Literal

MAX_LENGTH = 2_000
"""Characters of an expression that is read."""
MAX_STATES = 400
MAX_WRITTEN = 12_000
"""Characters of an expression that is written."""
MAX_REPEATED = 64
"""A higher count is no chain of states; the expression is then written as it was read, but for look-ahead."""
MAX_POWER = 1_000
MAX_STEPS = 60_000
"""Parts of an expression that are looked at for its automaton, each of a microsecond."""
_LAST = 0x10FFFF

# Nodes: ("empty",), ("set", ranges), ("cat", a, b), ("or", parts), ("and", parts), ("not", a), ("star", a),
# ("power", a, least, most) of what is counted high, and those that depend on what is around them: ("begin",),
# ("edge",), ("inner",) and ("behind", ranges) for ^, \b, \B and (?<=[...]).
Node = tuple[Any, ...]
Ranges = tuple[tuple[int, int], ...]
_NONE: Node = ("or", frozenset())
_EMPTY: Node = ("empty",)
_ALL: Ranges = ((0, _LAST),)


class UnreadableError(Exception):
    """The expression uses something else, or would be too large."""


class _NothingError(UnreadableError):
    """No string matches."""


_TOKEN = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*+\]|\{[0-9]*,?[0-9]*\}|\(\?<?[=!]|.", re.DOTALL)
_LOOKS = frozenset(["(?=", "(?!", "(?<=", "(?<!", r"\b", r"\B"])
_COUNT = re.compile(r"\{(?:[0-9]+(?:,[0-9]*)?|,[0-9]+)\}")


def has_lookahead(pattern: str) -> bool:
    """Whether it looks around: ahead, behind, for the edge of a word, or an end of the text in its middle."""
    if "(?" not in pattern and "\\" not in pattern and not ("^" in pattern[1:] or "$" in pattern[:-1]):
        return False
    return any(
        token[0] in _LOOKS
        or (token[0] == "^" and token.start())
        or (token[0] == "$" and token.end() < len(pattern))
        for token in _TOKEN.finditer(pattern)
    )


def with_escaped_braces(pattern: str) -> str:
    """The same with a backslash before each brace that counts nothing, as ECMA-262 allows: ${name}."""
    if "{" not in pattern:
        return pattern
    return "".join(
        token[0].replace("{", r"\{").replace("}", r"\}")
        if token[0][0] in "{}" and not _COUNT.fullmatch(token[0])
        else token[0]
        for token in _TOKEN.finditer(pattern)
    )


@lru_cache(256)
def without_lookahead(pattern: str) -> tuple[str, ...]:
    """Expressions that all match what this one does: one if possible; itself if it cannot be read.

    None: no string matches.
    """
    try:
        return (_written(_read(pattern)),)
    except _NothingError:
        return ()
    except (UnreadableError, RecursionError):
        pass
    try:  # what stands behind a first look-ahead may be large, and stays as it is
        ahead, rest = _first_ahead(pattern)
        return (*without_lookahead("^" + rest), _written(_read(ahead)))
    except (UnreadableError, RecursionError):
        return (pattern,)


@lru_cache(256)
def complement(pattern: str) -> str | None:
    """An expression of the strings in which this one finds nothing; None: it cannot be read."""
    try:
        return _written(_not(_read(pattern)))
    except (UnreadableError, RecursionError):
        return None


def meet(patterns: tuple[str, ...], others: tuple[str, ...] = ()) -> str | None:
    """An expression of the strings in which all of these find something, and none of the others; or None.

    Raises:
        UnreadableError: they cannot be read, or are too large together.
    """
    found = _met(patterns, others)
    if found is False:
        raise UnreadableError
    return found


@lru_cache(512)
def _met(patterns: tuple[str, ...], others: tuple[str, ...]) -> str | Literal[False] | None:
    """meet(); False: it raises, which is remembered too."""
    try:
        found = _and(*map(_read, patterns), *(_not(_read(other)) for other in others))
        return None if found == _NONE else _written(found)
    except _NothingError:
        return None
    except (UnreadableError, RecursionError):
        return False


@lru_cache(256)
def is_endless(pattern: str) -> bool:
    """Whether it is known that there is no end of the strings that match it."""
    try:
        return "*" in _written(_read(pattern))  # of what leads to an end; a character is never written as *
    except (UnreadableError, RecursionError):
        return False


def literal(text: str) -> str:
    """An expression of this text alone; of one character, in brackets too."""
    return re.sub(r"[-\[\]\\^$.|?*+(){}&~#]", r"\\\g<0>", text)


def _first_ahead(pattern: str) -> tuple[str, str]:
    """(an expression that is the look-ahead which an expression begins with, the rest)."""
    if not pattern.startswith(("^(?!", "^(?=")) or _splits(pattern):
        raise UnreadableError
    reader = _Reader(pattern, 1)
    reader.atom()
    return pattern[: reader.at], pattern[reader.at :]


# --- nodes -------------------------------------------------------------------------------------------


def _set(ranges: Ranges) -> Node:
    return ("set", ranges) if ranges else _NONE


def _cat(a: Node, b: Node) -> Node:
    if a == _NONE or b == _NONE:
        return _NONE
    if a == _EMPTY:
        return b
    if b == _EMPTY:
        return a
    return ("cat", a[1], _cat(a[2], b)) if a[0] == "cat" else ("cat", a, b)


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


def _or(*parts: Node) -> Node:
    return _joined("or", parts, _NONE, _ANYTHING)


def _and(*parts: Node) -> Node:
    return _joined("and", parts, _ANYTHING, _NONE)


def _not(a: Node) -> Node:
    return a[1] if a[0] == "not" else _ANYTHING if a == _NONE else _NONE if a == _ANYTHING else ("not", a)


def _star(a: Node) -> Node:
    return _EMPTY if a in (_EMPTY, _NONE) else a if a[0] == "star" else ("star", a)


_ANYTHING: Node = ("star", ("set", _ALL))
_BEGIN: Node = ("begin",)
_EDGES: dict[str, Node] = {r"\b": ("edge",), r"\B": ("inner",)}
_NOTHING = -1
"""Instead of a character before the first one, or behind the last."""


def _inverted(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for low, high in ranges:
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    return (*found, (at, _LAST)) if at <= _LAST else tuple(found)


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


# --- reading -----------------------------------------------------------------------------------------

_SPACES: Ranges = _merged(
    [(9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
     (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
)  # fmt: skip
_DIGITS: Ranges = ((48, 57),)
_LETTERS: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_CLASSES: dict[str, Ranges] = {"d": _DIGITS, "w": _LETTERS, "s": _SPACES}
_CLASSES |= {name.upper(): _inverted(ranges) for name, ranges in _CLASSES.items()}
_CODE = re.compile(r"u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})")
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_COUNTED = re.compile(r"\{([0-9]{1,4})(,)?([0-9]{1,4})?\}")
_MARKS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
Build = Callable[[Node], Node]
"""What a part becomes before what follows it."""


class _Reader:
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
        return parts[0] if len(parts) == 1 else lambda k: _or(*(part(k) for part in parts))

    def _sequence(self) -> Build:
        parts: list[Build] = []
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            last = self._set
            self._set = None
            if self._ahead and parts and last is not None and (edge := self._next(*_EDGES)) is not None:
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
        if around in ("^", *_EDGES) or around.startswith("(?<"):
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
            return lambda k: _or(part(k), k)
        if self._looks == before:
            return _powers(part(_EMPTY), low, high)
        if (low, high) != (0, None):
            raise UnreadableError
        return lambda k: _anywhere(part, k)

    def atom(self) -> Build:
        if self._next("^"):
            return (lambda k: k) if self._anchored and self.at == 1 else lambda k: _cat(_BEGIN, k)
        if (edge := self._next(*_EDGES)) is not None:
            return lambda k: _cat(_EDGES[edge], k)
        if self._next("$"):
            self._looks += 1
            return lambda k: _and(k, _EMPTY)
        if (look := self._next("(?<=", "(?<!")) is not None:
            behind: Node = ("behind", self._ranges())
            if not self._next(")"):
                raise UnreadableError
            return lambda k: _cat(behind if look == "(?<=" else ("unlike", behind[1]), k)
        if (look := self._next("(?=", "(?!")) is not None:
            self._looks += 1
            inner = self._group()(_ANYTHING)
            return lambda k: _and(k, inner if look == "(?=" else _not(inner))
        if self._next("(?:", "("):
            if self._next("?"):
                raise UnreadableError
            return self._group()
        ranges = self._ranges()
        self._set = ranges, 1, 1
        return lambda k: _cat(_set(ranges), k)

    def _group(self) -> Build:
        inner = self.alternatives()
        if not self._next(")"):
            raise UnreadableError
        self._set = None
        return inner

    def _ranges(self) -> Ranges:
        if self._next("."):
            return _inverted(((10, 10),))
        if self._next("["):
            return self._class()
        return self._character(r"*+?{}()|[]^$")

    def _class(self) -> Ranges:
        inverted, found = self._next("^"), list[tuple[int, int]]()
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
        return _inverted(_merged(found)) if inverted else _merged(found)

    def _character(self, special: str) -> Ranges:
        one = self._text[self.at : self.at + 1]
        self.at += 1
        if one == "\\":
            one = self._text[self.at : self.at + 1]
            self.at += 1
            if one in _CLASSES:
                return _CLASSES[one]
            if one in _CONTROLS:
                return ((_CONTROLS[one], _CONTROLS[one]),)
            if (code := _CODE.match(self._text, self.at - 1)) is not None:
                self.at = code.end()
                at = int(code[1] or code[2] or code[3], 16)
                if at > _LAST or 0xD800 <= at <= 0xDFFF:
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
    if max(low, high or 0) > (MAX_POWER if not _asks(inner) else MAX_REPEATED):
        raise UnreadableError
    if max(low, high or 0) > MAX_REPEATED:
        counted = _power(inner, low, low if high is None else high)
        rest = _star(inner) if high is None else _EMPTY
        return lambda k: _cat(counted, _cat(rest, k))

    def build(k: Node) -> Node:
        if high is None:
            found = _cat(_star(inner), k)
        else:
            found = k
            for _ in range(high - low):
                found = _or(_cat(inner, found), k)
        for _ in range(low):
            found = _cat(inner, found)
        return found

    return build


def _power(a: Node, low: int, high: int) -> Node:
    return _EMPTY if not high or a == _EMPTY else a if low == high == 1 else ("power", a, low, high)


def _until_edge(ranges: Ranges, low: int, high: int, edge: bool) -> Build:
    """A set so many times, and behind the last one of them an edge of a word, or none."""
    letters = _common(ranges, _LETTERS)
    others = _common(ranges, _CLASSES["W"])
    before = _powers(_set(ranges), low - 1, high - 1)

    def build(k: Node) -> Node:
        word = _cat(_set(_LETTERS), _ANYTHING)
        to_other, to_word = _and(k, _not(word)), _and(k, word)
        if not edge:
            to_other, to_word = to_word, to_other
        return _or(before(_cat(_set(letters), to_other)), before(_cat(_set(others), to_word)))

    return build


def _common(one: Ranges, other: Ranges) -> Ranges:
    return _inverted(_merged([*_inverted(one), *_inverted(other)]))


_MARK: Node = ("set", ((-1, -1),))
"""A character that no string has."""


def _anywhere(part: Build, k: Node) -> Node:
    """(?:(?!word).)* at the end: no word begins anywhere."""
    found = part(_MARK)
    if k != _EMPTY or found[0] != "and" or len(found[1]) != 2:
        raise UnreadableError
    plain = [each for each in found[1] if each[0] == "cat" and each[1][0] == "set" and each[2] == _MARK]
    words = [each for each in found[1] if each[0] == "not"]
    if len(plain) != 1 or len(words) != 1 or _nullable(words[0][1]):
        raise UnreadableError
    return _and(_star(plain[0][1]), _not(_cat(_ANYTHING, words[0][1])))


@lru_cache(256)
def _read(pattern: str) -> Node:
    """The strings in which the expression finds something."""
    anchored = pattern.startswith("^") and not _splits(pattern)  # or ^ is the first alternative's alone
    reader = _Reader(pattern, anchored=anchored)
    build = reader.alternatives()
    if reader.at != len(pattern):
        raise UnreadableError
    found = build(_ANYTHING)
    if _asks(found) and _counts(found):
        found = _Reader(pattern, anchored=anchored, ahead=True).alternatives()(_ANYTHING)
    return found if anchored else _cat(_ANYTHING, found)


def _splits(pattern: str) -> bool:
    """Whether there is an alternative outside all groups."""
    reader = _Reader(pattern)
    reader._sequence()
    return reader.at < len(pattern)


# --- the automaton -----------------------------------------------------------------------------------


@lru_cache(4_000)
def _asks(a: Node) -> frozenset[Ranges]:
    """Sets of characters: whether the one before is of them decides what it matches. "" is of none."""
    match a[0]:
        case "empty" | "set":
            return frozenset()
        case "or" | "and":
            return frozenset[Ranges]().union(*map(_asks, a[1]))
        case "begin":
            return frozenset([_ALL])
        case "edge" | "inner":
            return frozenset([_LETTERS])
        case "behind" | "unlike":
            return frozenset([a[1]])
        case "cat":
            return _asks(a[1]) | _asks(a[2])
    return _asks(a[1])


@lru_cache(4_000)
def _counts(a: Node) -> bool:
    """Whether a part of it is counted high."""
    match a[0]:
        case "power":
            return True
        case "or" | "and":
            return any(map(_counts, a[1]))
        case "cat":
            return _counts(a[1]) or _counts(a[2])
        case "not" | "star":
            return _counts(a[1])
    return False


@lru_cache(4_000)
def _nullable(a: Node, before: int = _NOTHING, behind: int = _NOTHING) -> bool:
    """Whether it matches nothing between these characters."""
    match a[0]:
        case "empty" | "star":
            return True
        case "set":
            return False
        case "cat":
            return _nullable(a[1], before, behind) and _nullable(a[2], before, behind)
        case "or":
            return any(_nullable(part, before, behind) for part in a[1])
        case "and":
            return all(_nullable(part, before, behind) for part in a[1])
        case "power":
            return not a[2] or _nullable(a[1], before, behind)
        case "begin":
            return before == _NOTHING
        case "edge" | "inner":
            changes = _is_in(before, _LETTERS) is not _is_in(behind, _LETTERS)
            return changes if a[0] == "edge" else not changes
        case "behind" | "unlike":
            found = _is_in(before, a[1])
            return found if a[0] == "behind" else not found
    return not _nullable(a[1], before, behind)


def _is_in(at: int, ranges: Ranges) -> bool:
    return any(low <= at <= high for low, high in ranges)


def _derivative(a: Node, at: int, known: dict[Node, Node], before: int = _NOTHING) -> Node:
    """What may follow a character, which stands behind `before`."""
    if a in known:
        return known[a]
    match a[0]:
        case "set":
            found = _EMPTY if _is_in(at, a[1]) else _NONE
        case "cat":
            found = _cat(_derivative(a[1], at, known, before), a[2])
            if _nullable(a[1], before, at):
                found = _or(found, _derivative(a[2], at, known, before))
        case "or":
            found = _or(*(_derivative(part, at, known, before) for part in a[1]))
        case "and":
            found = _and(*(_derivative(part, at, known, before) for part in a[1]))
        case "star":
            found = _cat(_derivative(a[1], at, known, before), a)
        case "power":
            rest = _power(a[1], max(0, a[2] - 1), a[3] - 1)
            found = _cat(_derivative(a[1], at, known, before), rest)
        case "not":
            found = _not(_derivative(a[1], at, known, before))
        case _:
            found = _NONE
    known[a] = found
    return found


@lru_cache(4_000)
def _heads(a: Node) -> frozenset[Ranges]:
    """Sets of characters: of which of them the first one is decides what may follow it."""
    match a[0]:
        case "set":
            return frozenset([a[1]])
        case "or" | "and":
            return frozenset[Ranges]().union(*map(_heads, a[1]))
        case "cat":
            here = _heads(a[1])
            return here | _heads(a[2]) if _nullable(a[1]) or _asks(a[1]) else here
        case "edge" | "inner":
            return frozenset([_LETTERS])
        case "star" | "not" | "power":
            return _heads(a[1])
    return frozenset()


def _begun(a: Node) -> Node:
    """The same behind a character, where nothing begins."""
    if _ALL not in _asks(a):
        return a
    match a[0]:
        case "begin":
            return _NONE
        case "cat":
            return _cat(_begun(a[1]), _begun(a[2]))
        case "or":
            return _or(*map(_begun, a[1]))
        case "and":
            return _and(*map(_begun, a[1]))
        case "star":
            return _star(_begun(a[1]))
        case "not":
            return _not(_begun(a[1]))
    return a


def _kinds(a: Node) -> list[Ranges]:
    """Sets of characters that the expression treats alike."""
    waiting, sets = [a], set[Ranges]()
    sets.update(_asks(a))
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
    spans = [(low, high - 1) for low, high in zip(edges, [*edges[1:], _LAST + 1], strict=True) if low < high]
    alike: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    ordered = sorted(sets)
    for span in spans:
        said = tuple(any(low <= span[0] <= high for low, high in ranges) for ranges in ordered)
        alike.setdefault(said, []).append(span)
    return [_merged(ranges) for ranges in alike.values()]


def _written(start: Node) -> str:
    """An expression of the same strings, from ^ to $."""
    kinds = _kinds(start)
    if not _counts(start):
        try:
            return _of_automaton(start, kinds)
        except _NothingError:
            raise
        except UnreadableError:
            pass
    if (found := _Spelling(kinds).text(start)) is None:
        raise _NothingError
    return f"^(?:{found})$"


def _of_automaton(start: Node, kinds: list[Ranges]) -> str:
    number: dict[tuple[Node, tuple[bool, ...]], int] = {(start, _like(start, _NOTHING)): 0}
    states = [(start, _NOTHING)]
    edges: list[dict[int, Ranges]] = []
    steps = 0
    members: dict[Ranges, int] = {}  # of each set, which kinds are in it, as bits
    while len(edges) < len(states):
        state, before = states[len(edges)]
        out: dict[int, list[tuple[int, int]]] = {}
        groups = [(1 << len(kinds)) - 1]
        for ranges in _heads(state):
            if ranges not in members:
                members[ranges] = sum(_is_in(kind[0][0], ranges) << at for at, kind in enumerate(kinds))
            inside = members[ranges]
            groups = [part for each in groups for part in (each & inside, each & ~inside) if part]
        for group in sorted(groups, key=lambda each: each & -each):  # by their first kind
            alike = [kind for at, kind in enumerate(kinds) if group >> at & 1]
            known: dict[Node, Node] = {}
            to = _begun(_derivative(state, alike[0][0][0], known, before))
            steps += len(known) + 1
            if to == _NONE:
                continue
            asks = bool(_asks(to))
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
        edges.append({to: _merged(ranges) for to, ranges in out.items()})
    return _eliminated(edges, [at for at, (node, before) in enumerate(states) if _nullable(node, before)])


def _like(a: Node, before: int) -> tuple[bool, ...]:
    """What it asks of the character before."""
    return tuple(_is_in(before, ranges) for ranges in sorted(_asks(a)))


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
        if self._left < 0 or _asks(a):
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
            if (to := _derivative(a, kind[0][0], {})) != _NONE:
                ways.setdefault(to, []).extend(kind)
        parts = [""] if _nullable(a) else []
        for to, ranges in ways.items():
            if (rest := self.text(to)) is not None:
                parts.append(_class_of(_merged(ranges)) + _piece(rest))
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
        raise _NothingError
    return f"^(?:{ways[begin][end]})$"


_ONE = re.compile(r"\[(?:[^\]\\]|\\.)*+\]|\\u\{[0-9A-F]+\}|\\.|[^\\\[\]()|]", re.DOTALL)


def _piece(text: str) -> str:
    return f"(?:{text})" if "|" in text else text


def _atom(text: str) -> str:
    return text if _ONE.fullmatch(text) else f"(?:{text})"


def _class_of(ranges: Ranges) -> str:
    if ranges == _ALL:
        return r"[\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _shown(ranges[0][0])
    inverted = ranges[-1][1] == _LAST
    shown = "".join(
        _shown(low) if low == high else f"{_shown(low)}-{_shown(high)}"
        for low, high in (_inverted(ranges) if inverted else ranges)
    )
    return f"[{'^' * inverted}{shown}]"


def _shown(at: int) -> str:
    one = chr(at)
    return one if at < 128 and one.isalnum() else rf"\u{{{at:X}}}"
