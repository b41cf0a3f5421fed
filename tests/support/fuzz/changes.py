"""Changes to inputs: of bytes, of JSON values, and of texts by the words of their language."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

EDGES = (
    0, 1, 2, 3, 7, 8, 31, 32, 33, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**24, 2**31 - 1, 2**31,
    2**32 - 1, 2**32, 2**53, 2**60, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
"""Numbers at which sizes, offsets and counters go wrong."""
MOST_BYTES = 64 << 10


def spoil(rng: random.Random, data: bytes, others: Sequence[bytes], near: float = 1.0) -> bytes:
    """The bytes with one to three changes.

    Args:
        others: inputs of which a part may be taken over.
        near: above 1 most changes are near the beginning, where headers are.
    """
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = int(len(found) * rng.random() ** near)
        _spoil_once(rng, found, at, others)
    return bytes(found[:MOST_BYTES])


def _spoil_once(rng: random.Random, found: bytearray, at: int, others: Sequence[bytes]) -> None:
    span = min(rng.choice((1, 1, 2, 4, 8, 40)), len(found) - at)
    match rng.randrange(9):
        case 0 if at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(found):
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case 2 | 3:
            size = rng.choice((4, 8))
            found[at : at + size] = (rng.choice(EDGES) % 256**size).to_bytes(size, "little")
        case 4:
            del found[at : at + span]
        case 5:
            found[at:at] = found[at : at + span] * rng.choice((1, 2, 50))
        case 6:
            found[at:at] = rng.randbytes(span)
        case 7:
            del found[at:]
        case _:
            other = rng.choice(others) if others else b""
            begin = rng.randrange(len(other) + 1)
            found[at : at + span] = other[begin : begin + rng.choice((1, 4, 16, 200))]


def deep(depth: int) -> Any:
    """Lists within lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    None, True, False, *EDGES, -1, -(2**31), -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), "", "a", "\0", "\ud800", "é" * 20, "x" * 1000, [], {}, [[]], [0] * 300, [""] * 50,
    deep(150),
    {"": {}}, {"a": [None]},
)  # fmt: skip


def spoil_json(
    rng: random.Random, value: Any, words: Sequence[str], others: Sequence[Any] = (), most: int = 3
) -> Any:
    """The value, changed in place where it can be, in one to `most` places.

    Args:
        words: names and texts that mean something where it is read.
        others: values of which a part may be taken over.
    """
    for _ in range(rng.randint(1, most)):
        places = _places(value)
        if not places:
            return _value(rng, words, others)
        parent, key = rng.choice(places)
        match rng.randrange(7):
            case 0:
                del parent[key]
            case 1 | 2:
                parent[key] = _value(rng, words, others)
            case 3:
                parent[key] = _near(rng, parent[key])
            case 4 if isinstance(parent, list):
                parent.insert(key, _value(rng, words, others))
            case 5 if isinstance(parent, list):
                parent.extend(copy.deepcopy([parent[key]] * rng.choice((1, 2, 30))))
            case 6 if isinstance(parent, dict) and words:
                parent[rng.choice(words)] = parent.pop(key)
            case _ if isinstance(parent, dict):
                parent[rng.choice(words) if words else "x"] = _value(rng, words, others)
            case _:
                parent[key] = [parent[key]]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(parent, key) of every value inside."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left and len(found) < 3000:
        each = left.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        for key in keys:
            found.append((each, key))
            left.append(each[key])
    return found


def _value(rng: random.Random, words: Sequence[str], others: Sequence[Any]) -> Any:
    kind = rng.random()
    if kind < 0.3 and words:
        return rng.choice(words)
    if kind < 0.5 and others:
        places = _places(rng.choice(others))
        if places:
            parent, key = rng.choice(places)
            return copy.deepcopy(parent[key])
    return copy.deepcopy(rng.choice(VALUES))  # it is changed where it stands


def _near(rng: random.Random, value: Any) -> Any:
    """Something of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, 2 * value, rng.choice(EDGES)))
    if isinstance(value, float):
        return rng.choice((-value, 0.0, value * 1e30, float("nan"), float("inf")))
    if isinstance(value, str):
        return spoil_text(rng, value, ())
    if isinstance(value, list):
        return value[::-1] if rng.random() < 0.5 else value[:1]
    return {} if isinstance(value, dict) else 0


def spoil_text(rng: random.Random, text: str, words: Sequence[str], others: Sequence[str] = ()) -> str:
    """The text with one to four changes.

    Args:
        words: of its language, which are put in.
        others: texts of which a part may be taken over.
    """
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.choice((0, 1, 1, 3, 12)))
        kind = rng.random()
        if kind < 0.5 and words:
            new = rng.choice(words)
        elif kind < 0.65 and others:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            new = other[begin : begin + rng.choice((2, 10, 60))]
        elif kind < 0.8:
            new = text[at:to] * rng.choice((0, 2, 2, 20))
        else:
            new = rng.choice(
                ('"', "'", "\\", "\0", "\n", "{", "}", "(", ")", "[", "]", "9" * 12, "é", "😀", "\ud800")
            )
        text = text[:at] + new + text[to:]
    return text[:MOST_BYTES]


def pack(files: dict[str, bytes]) -> bytes:
    """A folder's files as one input."""
    texts = {name: data.decode("latin-1") for name, data in files.items()}
    return json.dumps(texts, ensure_ascii=False).encode(errors="replace")


def unpack(data: bytes) -> dict[str, bytes]:
    """What pack() has packed."""
    return {name: text.encode("latin-1") for name, text in json.loads(data).items()}
