"""What a list of literals says at a glance, so that lists that contradict each other are never merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.structured.schema.equality import frozen, type_of
from octavo.structured.schema.refs import Schemas

TYPES = ("null", "boolean", "number", "string", "array", "object")

Literal = tuple[int, str, bool]
"""(a subschema, a keyword of it, whether it holds or is violated)"""

KINDS = {
    "multipleOf": "number", "maximum": "number", "exclusiveMaximum": "number", "minimum": "number",
    "exclusiveMinimum": "number", "maxLength": "string", "minLength": "string", "pattern": "string",
    "format": "string", "maxItems": "array", "minItems": "array", "uniqueItems": "array",
    "contains": "array", "prefixItems": "array", "items": "array", "unevaluatedItems": "array",
    "maxProperties": "object", "minProperties": "object", "required": "object", "properties": "object",
    "patternProperties": "object", "additionalProperties": "object", "propertyNames": "object",
    "unevaluatedProperties": "object", "dependentRequired": "object",
}  # fmt: skip

_ALL = frozenset(TYPES)
_NONE: frozenset[Any] = frozenset()


@dataclass(frozen=True, slots=True)
class Outline:
    """What values of some literals are like.

    Attributes:
        types: those that they may have.
        needed, absent: properties that objects must and must not have.
        only, never: of properties, the values that they may have, and those that they may not, frozen().
        literals: themselves.
    """

    types: frozenset[str]
    needed: frozenset[str]
    absent: frozenset[str]
    only: Mapping[str, frozenset[Any]]
    never: Mapping[str, frozenset[Any]]
    literals: frozenset[Literal]

    def agrees(self, other: Outline) -> bool:
        """False: nothing is both."""
        few, many = sorted((self.literals, other.literals), key=len)
        if any((number, keyword, not wanted) in many for number, keyword, wanted in few):
            return False
        types = self.types & other.types
        # what is no object has no properties that could contradict each other
        return bool(types - {"object"}) or (bool(types) and self._agrees_on_properties(other))

    def _agrees_on_properties(self, other: Outline) -> bool:
        if not (self.needed.isdisjoint(other.absent) and self.absent.isdisjoint(other.needed)):
            return False
        needed = self.needed | other.needed
        return all(
            self._only(name, other) - self.never.get(name, _NONE) - other.never.get(name, _NONE)
            for name in (self.only.keys() | other.only.keys()) & needed
        )

    def _only(self, name: str, other: Outline) -> frozenset[Any]:
        mine, its = self.only.get(name), other.only.get(name)
        return (its or _NONE) if mine is None else mine if its is None else mine & its


def outline(schemas: Schemas, literals: Iterable[Literal]) -> Outline:
    types, needed, absent = _ALL, set[str](), set[str]()
    only: dict[str, frozenset[Any]] = {}
    never: dict[str, frozenset[Any]] = {}
    for number, keyword, wanted in literals:
        types &= _types(schemas, number, keyword, wanted)
        given = schemas[number].get(keyword)
        if keyword == "required" and isinstance(given, list):
            names = [name for name in given if isinstance(name, str)]
            (needed if wanted else absent).update(names)  # a violated one has one name, see negated.py
        elif keyword == "properties":
            view = schemas if wanted else schemas.exact
            for name, values in _values(view, given, wanted):
                if wanted:
                    only[name] = only[name] & values if name in only else values
                else:
                    never[name] = never.get(name, _NONE) | values
            needed.update(() if wanted else given)
    return Outline(types, frozenset(needed), frozenset(absent), only, never, frozenset(literals))


def _values(schemas: Schemas, properties: Any, wanted: bool) -> Iterator[tuple[str, frozenset[Any]]]:
    """Of the properties that a const or enum decides, those that satisfy (or, not wanted, never violate)."""
    for name, part in properties.items():
        node = schemas[schemas.number(part)]
        if not isinstance(node, Mapping) or not ("const" in node or isinstance(node.get("enum"), list)):
            continue
        if "const" in node:
            values = frozenset([frozen(node["const"])])
        else:
            values = schemas.values(schemas.number(part))
        if not wanted:
            if len(node.keys() - {"type"}) > 1:
                continue  # one of the values may violate another keyword
            types = _types(schemas, schemas.number(part), "type", True) if "type" in node else _ALL
            values = frozenset(value for value in values if value[0] in types - {"number"})
        yield name, values


def _types(schemas: Schemas, number: int, keyword: str, wanted: bool) -> frozenset[str]:
    """The JSON types of values of one literal; integers are numbers."""
    if keyword in KINDS:
        return _ALL if wanted else frozenset([KINDS[keyword]])
    given = schemas[number][keyword]
    if keyword == "type":
        names = (
            {given} if isinstance(given, str) else set(map(str, given)) if isinstance(given, list) else _ALL
        )
        if not wanted:
            return _ALL - names
        return _ALL & (names | {"number"} if "integer" in names else names)
    if wanted and keyword == "const":
        return frozenset([type_of(given)])
    if wanted and isinstance(given, list):
        return frozenset(map(type_of, given))
    return _ALL
