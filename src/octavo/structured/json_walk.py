"""JsonWalk: where a JSON text stands, byte by byte, and which arrays in it may hold no item twice.

It goes beside a grammar, which has seen to it that the text is JSON. Each array of distinct items remembers
those that are finished: their digests, which tell whether another one is equal, and a tree of their texts,
which tells whether one that is not finished may still become so. Time and memory grow with the text alone.

A step can be taken back (mark, undo), so a token is tried before it is taken.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from octavo.structured.places import Place

MAX_NESTED = 16
"""Of arrays of distinct items, inside each other: every byte is followed in all of them."""

# Symbols of a text, beside its strings' bytes. Commas and colons say nothing that these do not.
_STRING, _END_STRING, _OBJECT, _END_OBJECT, _ARRAY, _END_ARRAY, _NUMBER, _END_NUMBER = range(256, 264)
_BLANKS = frozenset(b" \n\r\t")
_NUMERIC = frozenset(b"0123456789+-.eE")
_WORDS = {ord("t"): 3, ord("f"): 4, ord("n"): 3}
"""Letters that follow the first one of a word."""
_SIMPLE = {ord("n"): b"\n", ord("t"): b"\t", ord("r"): b"\r", ord("b"): b"\b", ord("f"): b"\f"}
_STOPS = re.compile(rb'["\\]')
_PLAIN = re.compile(rb"-?(?:[1-9][0-9]*)?|0")
ANYWHERE = -1
"""Instead of a node: the text may become equal to one of the items, nobody knows which."""


class Mode(IntEnum):
    """What the next byte belongs to."""

    VALUE = 0
    AFTER = 1
    NAME = 2
    COLON = 3
    STRING = 4
    IN_NAME = 5
    NUMBER = 6
    WORD = 7


class Seen:
    """The finished items of one array, and the tree of their symbols."""

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._digests: set[bytes] = set()
        self._waiting: list[tuple[int, int]] = []  # of the last items: where their symbols stand
        self._entered: list[tuple[int, int, int]] = []  # of the others: (node, symbol, nodes before)
        self._children: list[dict[int, int]] = [{}]

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._digests

    def __len__(self) -> int:
        return len(self._items)

    def add(self, digest: bytes, start: int, stop: int) -> None:
        """An item is finished, whose symbols are these of the walk's."""
        self._items.append(digest)
        self._digests.add(digest)
        self._waiting.append((start, stop))

    def remove(self) -> None:
        """Take the last add() back."""
        self._digests.discard(self._items.pop())
        if self._waiting:
            self._waiting.pop()
            return
        node, symbol, count = self._entered.pop()
        del self._children[node][symbol]
        del self._children[count:]

    def child(self, node: int, symbol: int) -> int | None:
        return self._children[node].get(symbol)

    def children(self, node: int) -> dict[int, int]:
        return self._children[node]

    def enter(self, symbols: Sequence[int]) -> None:
        """Bring the tree up to date."""
        for start, stop in self._waiting:
            node, entered, count = 0, None, len(self._children)
            for symbol in symbols[start:stop]:
                found = self._children[node].get(symbol)
                if found is None:
                    entered = entered or (node, symbol, count)
                    found = self._children[node][symbol] = len(self._children)
                    self._children.append({})
                node = found
            assert entered is not None  # no text of one value begins another's
            self._entered.append(entered)
        self._waiting.clear()

    def copy(self) -> Seen:
        other = Seen()
        other._items, other._digests = self._items.copy(), self._digests.copy()
        other._waiting, other._entered = self._waiting.copy(), self._entered.copy()
        other._children = [edges.copy() for edges in self._children]
        return other


Hot = tuple[tuple[Seen, int], ...]
"""Of the arrays of distinct items that are open, those whose unfinished item may still become equal to one of
theirs, and the node of its text."""


class Frame(NamedTuple):
    """An open array or object.

    Attributes:
        place: of what stands in it next; own: its own.
        inner: it is, or is in, an item of an array of distinct items; nested: how many such arrays are open.
        parts: digests of what is finished in it, the last first.
        start: of the unfinished item's symbols.
    """

    parent: Frame | None
    is_array: bool
    own: int
    place: int
    nested: int
    inner: bool
    seen: Seen | None = None
    finished: int = 0
    parts: Any = None
    name: bytes = b""
    start: int = 0


class Position(NamedTuple):
    """Where a text stands.

    Attributes:
        start: of an open string's symbols.
        text: of a number, an escape (with its backslash), or what is left of a word (as a length).
        before: of a number: what was hot where it began.
    """

    mode: Mode
    frame: Frame | None
    hot: Hot = ()
    start: int = 0
    text: bytes = b""
    before: Hot = ()


class JsonWalk:
    """A text's way through the places of its schema.

    Args:
        places: of places_of().
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self.at = Position(Mode.VALUE, None)
        self._symbols: list[int] = []
        self._log: list[Seen] = []

    def mark(self) -> tuple[Position, int, int]:
        return self.at, len(self._symbols), len(self._log)

    def undo(self, mark: tuple[Position, int, int]) -> None:
        """Be where mark() was called."""
        self.at, symbols, added = mark
        while len(self._log) > added:
            self._log.pop().remove()
        del self._symbols[symbols:]

    def keep(self) -> None:
        """Nothing until here will be taken back."""
        self._log.clear()

    def copy(self) -> JsonWalk:
        other = JsonWalk(self.places)
        other._symbols = self._symbols.copy()
        made: dict[int, Seen] = {}

        def own(seen: Seen) -> Seen:
            if id(seen) not in made:
                made[id(seen)] = seen.copy()
            return made[id(seen)]

        frames: list[Frame] = []
        frame = self.at.frame
        while frame is not None:
            frames.append(frame)
            frame = frame.parent
        for each in reversed(frames):
            frame = each._replace(parent=frame, seen=each.seen and own(each.seen))
        hot, before = (tuple((own(s), n) for s, n in part) for part in (self.at.hot, self.at.before))
        other.at = self.at._replace(frame=frame, hot=hot, before=before)
        return other

    # --- what can be said of where it stands --------------------------------------------------------

    @property
    def nested(self) -> int:
        """How many arrays of distinct items are open."""
        return self.at.frame.nested if self.at.frame else 0

    @property
    def place(self) -> Place:
        """Of the value that is open, or comes next."""
        return self.places[self.at.frame.place if self.at.frame else 1]

    def is_roomy(self) -> bool:
        """Whether what is unfinished can surely become unequal to all finished items."""
        at = self.at
        if not at.hot:
            return True
        if at.mode is Mode.STRING:
            return self.place.string
        if at.mode is Mode.NUMBER:
            return _is_open(self.place.number, at.text)
        frame = at.frame
        begins = at.mode is Mode.VALUE and frame is not None and frame.seen is at.hot[-1][0]
        return begins and len(at.hot) == 1 and self.place.roomy

    def hot_after(self, text: bytes) -> bool:
        """Whether the open string may still become equal, after this text without escapes."""
        return bool(self._descend(self.at.hot, text))

    def likely(self, most: int) -> set[bytes]:
        """Texts of one to `most` bytes after which the open string may still become equal."""
        found: set[bytes] = set()
        waiting = [(seen, node, b"") for seen, node in self.at.hot if node != ANYWHERE]
        while waiting:
            seen, node, text = waiting.pop()
            seen.enter(self._symbols)
            for symbol, child in seen.children(node).items():
                if symbol < 256:
                    found.add(longer := text + bytes([symbol]))
                    if len(longer) < most:
                        waiting.append((seen, child, longer))
        return found

    # --- going on -----------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        """Go on; False: an item is finished that is equal to another one, and the place is lost."""
        at, end = 0, len(data)
        while at < end:
            if self.at.mode in (Mode.STRING, Mode.IN_NAME) and not self.at.text:
                found = _STOPS.search(data, at)
                stop = found.start() if found else end
                if stop > at:
                    self._characters(data[at:stop])
                    at = stop
                    continue
            if not self._byte(data[at]):
                return False
            at += 1
        return True

    def end_number(self) -> bool:
        """The open number is finished."""
        at, text = self.at, _canonical(self.at.text)
        symbols = (_NUMBER, *text, _END_NUMBER)
        self.at = at._replace(hot=at.before)
        self._emit(symbols)
        return self._finished(_digest(b"#", text))

    def _byte(self, byte: int) -> bool:
        mode = self.at.mode
        if mode in (Mode.STRING, Mode.IN_NAME):
            return self._in_string(byte)
        if mode is Mode.NUMBER:
            if byte in _NUMERIC:
                self._number(self.at.text + bytes([byte]), self.at.before)
                return True
            return self.end_number() and self._byte(byte)
        if mode is Mode.WORD:
            letter, left = self.at.text[:1], self.at.text[1:]
            self.at = self.at._replace(text=left)
            return bool(left) or self._finished(_digest(b"w", letter))
        if byte in _BLANKS:
            return True
        if mode is Mode.VALUE:
            return self._begin(byte)
        if mode is Mode.COLON:
            self.at = self.at._replace(mode=Mode.VALUE)
            return True
        return self._name(byte) if mode is Mode.NAME else self._after(byte)

    def _begin(self, byte: int) -> bool:
        at, frame = self.at, self.at.frame
        match byte:
            case 0x22:
                self._emit((_STRING,))
                self.at = self.at._replace(mode=Mode.STRING, start=len(self._symbols), text=b"")
            case 0x5B | 0x7B:
                return self._open(byte == 0x5B)
            case 0x5D:
                return self._close()
            case _ if byte in _WORDS:
                self._emit((byte,))
                name = bytes([byte])
                # The rest of a word is certain.
                twice = frame is not None and frame.seen is not None and _digest(b"w", name) in frame.seen
                self.at = self.at._replace(mode=Mode.WORD, text=name * _WORDS[byte])
                return not twice
            case _:
                self._number(bytes([byte]), at.hot)
        return True

    def _number(self, text: bytes, before: Hot) -> None:
        if _PLAIN.fullmatch(text):  # as it would be written again: it is as far as its text is
            hot = self._descend(before, (_NUMBER, *text)) if len(text) == 1 else self._descend(
                self.at.hot, text[-1:]
            )  # fmt: skip
        else:
            hot = tuple((seen, ANYWHERE) for seen, _ in before)
        self.at = self.at._replace(mode=Mode.NUMBER, text=text, hot=hot, before=before)

    def _open(self, is_array: bool) -> bool:
        parent = self.at.frame
        own = parent.place if parent else 1
        place = self.places[own]
        nested = parent.nested if parent else 0
        seen = Seen() if is_array and place.unique else None
        if seen is not None and nested == MAX_NESTED:
            return False
        self._emit((_ARRAY if is_array else _OBJECT,))
        first = (place.prefix[0] if place.prefix else place.items) if is_array else 0
        frame = Frame(
            parent, is_array, own, first, nested + (seen is not None), nested > 0, seen,
            start=len(self._symbols),
        )  # fmt: skip
        self.at = Position(Mode.VALUE if is_array else Mode.NAME, frame, self.at.hot)
        return True

    def _close(self) -> bool:
        frame = self.at.frame
        assert frame is not None
        digest = b""
        if frame.inner:
            self._emit((_END_ARRAY if frame.is_array else _END_OBJECT,))
            parts = []
            part = frame.parts
            while part is not None:
                part, each = part
                parts.append(each)
            if frame.is_array:
                digest = _digest(b"[", *reversed(parts))
            else:  # of names that are written twice the last one counts
                last = dict(reversed(parts))
                digest = _digest(
                    b"{", *(b for name in sorted(last) for b in (_digest(b'"', name), last[name]))
                )
        hot = tuple(each for each in self.at.hot if each[0] is not frame.seen)
        self.at = Position(Mode.AFTER, frame.parent, hot)
        return self._finished(digest)

    def _finished(self, digest: bytes) -> bool:
        """A value is finished."""
        at, frame = self.at, self.at.frame
        if frame is None:
            self.at = Position(Mode.AFTER, None)
            return True
        hot = at.hot
        if frame.seen is not None:
            if digest in frame.seen:
                return False
            frame.seen.add(digest, frame.start, len(self._symbols))
            self._log.append(frame.seen)
            hot = tuple(each for each in hot if each[0] is not frame.seen)
        if frame.is_array:
            place = self.places[frame.own]
            count = frame.finished + 1
            after = place.prefix[count] if count < len(place.prefix) else place.items
            parts = (frame.parts, digest) if frame.inner else None
            frame = frame._replace(finished=count, place=after, parts=parts)
        elif frame.inner:
            frame = frame._replace(parts=(frame.parts, (frame.name, digest)))
        self.at = Position(Mode.AFTER, frame, hot)
        return True

    def _after(self, byte: int) -> bool:
        frame = self.at.frame
        if byte in b"]}":
            return self._close()
        assert frame is not None
        if not frame.is_array:
            self.at = self.at._replace(mode=Mode.NAME)
            return True
        hot = self.at.hot
        if frame.seen is not None:
            frame = frame._replace(start=len(self._symbols))
            hot = (*hot, (frame.seen, 0)) if frame.seen else hot
        self.at = Position(Mode.VALUE, frame, hot)
        return True

    def _name(self, byte: int) -> bool:
        if byte == 0x7D:
            return self._close()
        self._emit((_STRING,))
        self.at = self.at._replace(mode=Mode.IN_NAME, start=len(self._symbols), text=b"")
        return True

    def _in_string(self, byte: int) -> bool:
        text = self.at.text
        if text:  # an escape
            text += bytes([byte])
            if text[1:2] != b"u":
                self.at = self.at._replace(text=b"")
                self._characters(_SIMPLE.get(byte, bytes([byte])))
            elif len(text) == 6:
                self.at = self.at._replace(text=b"")
                self._characters(chr(int(text[2:], 16)).encode("utf-8", "surrogatepass"))
            else:
                self.at = self.at._replace(text=text)
            return True
        if byte == 0x5C:
            self.at = self.at._replace(text=b"\\")
            return True
        written = bytes(self._symbols[self.at.start :])
        self._emit((_END_STRING,))
        frame = self.at.frame
        if self.at.mode is Mode.STRING:
            return self._finished(_digest(b'"', written) if frame and frame.nested else b"")
        assert frame is not None
        place = self.places[frame.own]
        frame = frame._replace(name=written, place=place.names.get(_decoded(written), place.other))
        self.at = Position(Mode.COLON, frame, self.at.hot)
        return True

    def _characters(self, text: bytes) -> None:
        """Of an open string."""
        frame = self.at.frame
        if self.nested or (self.at.mode is Mode.IN_NAME and frame and frame.own):
            self._symbols.extend(text)
            if self.at.hot:
                self.at = self.at._replace(hot=self._descend(self.at.hot, text))

    def _emit(self, symbols: Sequence[int]) -> None:
        if self.nested:
            self._symbols.extend(symbols)
            if self.at.hot:
                self.at = self.at._replace(hot=self._descend(self.at.hot, symbols))

    def _descend(self, hot: Hot, symbols: Sequence[int]) -> Hot:
        found = []
        for seen, node in hot:
            seen.enter(self._symbols)
            to: int | None = node
            for symbol in symbols if node != ANYWHERE else ():
                if (to := seen.child(to, symbol) if to is not None else None) is None:
                    break
            if to is not None:
                found.append((seen, to))
        return tuple(found)


def _digest(kind: bytes, *parts: bytes) -> bytes:
    made = hashlib.blake2b(kind, digest_size=16)
    for part in parts:
        made.update(part)
    return made.digest()


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _canonical(text: bytes) -> bytes:
    """The same for numbers that are equal."""
    try:
        value = float(text) if re.search(rb"[.eE]", text) else int(text)
        return str(int(value) if value == int(value) else value).encode()
    except (ValueError, OverflowError):  # thousands of digits, or none; beyond what a float holds
        try:
            return repr(float(text)).encode() if re.search(rb"[.eE]", text) else text.lstrip(b"+")
        except ValueError:
            return text


def _is_open(number: str, text: bytes) -> bool:
    """Whether a number that begins so can go on in many ways."""
    match number:
        case "any":
            mantissa, e, power = text.lower().partition(b"e")
            return not e or (bool(mantissa.strip(b"-0.")) and len(power) < 2)
        case "positive":
            return text[:1] not in (b"-", b"0")
        case "integer":
            return text not in (b"0", b"-0")
    return False
