"""Schemas of tools' parameters, closed: where one does not say whether there may be other members, none may.

JSON Schema would allow any, and a model that is held to it invents some; functions that are called with the
arguments by name then fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SAYS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"})
_JOINING = frozenset({"allOf", "if", "dependencies", "dependentSchemas", "$dynamicRef"})
_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "prefixItems")


def closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of a schema whose objects have the members that they name, and no others.

    One that describes an object in several places at once stays as it is: to close one place would shut out
    what the others name.
    """
    return schema if any(map(_joins, _objects(schema))) else _closed(schema)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _joins(schema: Mapping[str, Any]) -> bool:
    beside = not {"$ref", "anyOf", "oneOf"}.isdisjoint(schema) and "properties" in schema
    return beside or not _JOINING.isdisjoint(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for word in _NAMED:
        if isinstance(found.get(word), Mapping):
            found[word] = {name: _closed(each) for name, each in found[word].items()}
    for word in _LISTED:
        if isinstance(found.get(word), list):
            found[word] = [_closed(each) for each in found[word]]
    if "items" in found:
        found["items"] = _closed(found["items"])
    if isinstance(found.get("properties"), Mapping) and _SAYS.isdisjoint(found):
        found["additionalProperties"] = False
    return found
