"""When two JSON values are equal: for const, enum and uniqueItems."""

from __future__ import annotations

from typing import Any


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def equal(one: Any, other: Any) -> bool:
    """JSON's equality: 1 is 1.0, but true is not 1."""
    if type_of(one) != type_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return bool(one == other)


def frozen(value: Any) -> Any:
    """Something hashable that is equal for equal values (see equal)."""
    if isinstance(value, str):
        return "string", value
    kind = type_of(value)
    if kind == "array":
        return kind, tuple(map(frozen, value))
    if kind == "object":
        return kind, frozenset((name, frozen(part)) for name, part in value.items())
    return kind, value
