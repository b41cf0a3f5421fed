"""minProperties and maxProperties beside properties that may be left out, as alternatives without counting.

llguidance counts properties where all that are named are required, or where no others may come and one more
than those is asked for or allowed. Elsewhere an object is written as several: of each it is certain which of
the named properties it has. Where one property more than the required ones is asked for, an alternative for
each that may be the first of them is enough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from octavo.structured.schema.expression_nodes import UnreadableError
from octavo.structured.schema.expressions import meet
from octavo.structured.schema.negated import all_but
from octavo.structured.schema.value import matches_pattern

MAX_ALTERNATIVES = 64
MAX_SINGLE = 200
"""Where each has one property at most that may be left out: then they are short."""
MAX_FIRST = 128
"""Where each has one less of them than the one before."""
MAX_OPEN = 32
"""Optional properties of which llguidance is told that one is there. It keeps an alternative with all of them
open for each: of 60 that is more than rows may have (grammar.LIMITS)."""
_BOUNDS = ("minProperties", "maxProperties")


def counted(schema: dict[str, Any]) -> Any:
    """The same objects; the schema as it is where there would be too many alternatives.

    Args:
        schema: of type object, its parts plain.
    """
    if not any(word in schema for word in _BOUNDS):
        return schema
    places = schema.get("properties", {})
    required = [name for name in places if name in schema.get("required", ())]
    optional = [name for name, part in places.items() if part is not False and name not in required]
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", math.inf)
    closed = not schema.get("patternProperties") and schema["additionalProperties"] is False
    if closed:
        if least > len(required) + len(optional) or most < len(required):
            return False
        most = most if most < len(required) + len(optional) else math.inf
    least = least if least > len(required) else 0
    plain = {word: value for word, value in schema.items() if word not in _BOUNDS}
    low, high = {"minProperties": least} if least else {}, {"maxProperties": most} if most < math.inf else {}
    one_more = len(required) + 1
    some = least == one_more and not high
    told = closed and (most == one_more or (some and len(optional) <= MAX_OPEN))
    if told or not optional or not (low or high):
        return {**plain, **low, **high}
    others = _others(schema)
    if others is None:
        return schema
    if some and len(optional) <= MAX_FIRST:
        found = [
            {**plain, "properties": _without(places, optional[:at], closed), "required": [*required, name]}
            for at, name in enumerate(optional)
        ]
        return {"anyOf": [*found, *([] if closed else [_exactly(schema, required, others)])]}
    sizes = range(max(0, least - len(required)) if closed else 0, int(min(most, 99) - len(required)) + 1)
    limit = MAX_SINGLE if most <= one_more else MAX_ALTERNATIVES
    if sum(math.comb(len(optional), size) for size in sizes) > limit:
        return schema
    found = [_exactly(schema, [*required, *more], others) for more in _choices(optional, sizes)]
    return {"anyOf": found} if found else False


def _without(places: dict[str, Any], names: list[str], closed: bool) -> dict[str, Any]:
    """The properties, of which these are not there."""
    if closed:
        return {name: part for name, part in places.items() if name not in names}
    return {name: False if name in names else part for name, part in places.items()}


def _choices(names: list[str], sizes: Iterable[int]) -> Iterator[tuple[str, ...]]:
    for size in sizes:
        yield from itertools.combinations(names, size)


def _others(schema: dict[str, Any]) -> dict[str, Any] | None:
    """What properties must be that are not named, by patterns that no name matches twice; None: unknown."""
    places, rest = schema.get("properties", {}), schema["additionalProperties"]
    patterns: dict[str, Any] = schema.get("patternProperties", {})
    if any(matches_pattern(pattern, name) for pattern in patterns for name in places):
        return None
    if rest is False:
        return patterns
    called: str | None = all_but(list(places))
    if patterns:
        try:
            called = meet((all_but(list(places)),), tuple(patterns))
        except UnreadableError:
            return None
    return patterns if called is None else {**patterns, called: rest}


def _exactly(schema: dict[str, Any], names: list[str], others: dict[str, Any]) -> dict[str, Any]:
    """Objects that have these of the named properties and none of the others."""
    places = schema.get("properties", {})
    made: dict[str, Any] = {"type": "object", "properties": {name: places[name] for name in names}}
    if names:
        made["required"] = names
    if not others or schema.get("maxProperties") == len(names):
        return {**made, "additionalProperties": False}
    made["patternProperties"] = others
    bounds = {word: schema[word] for word in _BOUNDS if word in schema}
    return {**made, "additionalProperties": False, **bounds}
