"""What a list of literals says at a glance, so that lists that contradict each other are never merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from octavo.structured.schema.equality import frozen, type_of
from octavo.structured.schema.refs import Schemas

TYPES = ("null", "boolean", "number", "string", "array", "object")

Literal = tuple[int, str, bool]
"""(a subschema, a keyword of it, whether it holds or is violated)"""

Alternative = tuple[int, str, int]
"""(a subschema, a keyword of it, which of its alternatives)"""

KINDS = {
    "multipleOf": "number", "maximum": "number", "exclusiveMaximum": "number", "minimum": "number",
    "exclusiveMinimum": "number", "maxLength": "string", "minLength": "string", "pattern": "string",
    "format": "string", "maxItems": "array", "minItems": "array", "uniqueItems": "array",
    "contains": "array", "prefixItems": "array", "items": "array", "unevaluatedItems": "array",
    "maxProperties": "object", "minProperties": "object", "required": "object", "properties": "object",
    "patternProperties": "object", "additionalProperties": "object", "propertyNames": "object",
    "unevaluatedProperties": "object", "dependentRequired": "object",
}  # fmt: skip

_SAYS_NOTHING = KINDS.keys() - {"required", "properties", "additionalProperties"}
"""Words that tell nothing at a glance where they hold."""

_ALL = frozenset(TYPES)
_NAMES = frozenset([*TYPES, "integer"])
_NONE: frozenset[Any] = frozenset()
_ONLY = {name: frozenset([name]) for name in TYPES}
_OF_NAME = {**_ONLY, "integer": _ONLY["number"]}


class Outline(NamedTuple):
    """Literals that hold together, and what their values are like.

    Attributes:
        literals: in the order in which they are merged.
        held, violated: the same as (subschema, keyword).
        types: those that a value may have.
        needed, absent: properties that objects must and must not have.
        named: names of all that objects may have; None: there may be others.
        only, never: of properties, the values that they may have, and those that they may not, frozen().
        members: subschemas that properties satisfy, as (name, subschema); a set for each keyword.
        broken: of properties that are needed, subschemas that they violate.
        ways: which alternatives of anyOf, oneOf and if led here.
        values: the only ones, frozen(), where there are only so many.
    """

    literals: tuple[Literal, ...] = ()
    held: frozenset[tuple[int, str]] = _NONE
    violated: frozenset[tuple[int, str]] = _NONE
    types: frozenset[str] = _ALL
    needed: frozenset[str] = _NONE
    absent: frozenset[str] = _NONE
    named: frozenset[str] | None = None
    only: tuple[tuple[str, frozenset[Any]], ...] = ()
    never: tuple[tuple[str, frozenset[Any]], ...] = ()
    members: tuple[frozenset[tuple[str, int]], ...] = ()
    broken: frozenset[tuple[str, int]] = _NONE
    ways: frozenset[Alternative] = _NONE
    values: frozenset[Any] | None = None

    def meet(self, other: Outline) -> Outline | None:
        """Both; None: nothing is both."""
        if self is EVERYTHING or other is EVERYTHING:
            return other if self is EVERYTHING else self
        shared = self.shared(other)
        return None if shared is None else self.joined(other, *shared)

    def meets(self, other: Outline) -> bool:
        """Whether meet() finds something: what is both is not put together, which is the longer work."""
        if (shared := self.shared(other)) is None:
            return False
        if shared[0] != _ONLY["object"] or not (self.needed or other.needed):
            return True  # what is no object has no properties that lack a value
        needed = _union(self.needed, other.needed)
        return _possible(needed, self.only + other.only, self.never + other.never)

    def shared(self, other: Outline) -> tuple[frozenset[str], frozenset[Any] | None] | None:
        """(types, values) of what is both, as far as it shows before they are put together; None: nothing."""
        types = self.types if self.types is other.types else self.types & other.types
        if not types or not (self.held.isdisjoint(other.violated) and self.violated.isdisjoint(other.held)):
            return None
        values = self.values
        if other.values is not None:
            values = other.values if values is None else values & other.values
            if not values:
                return None
        if "object" in types and (
            (self.needed and not self._beside(other)) or (other.needed and not other._beside(self))
        ):
            types = types - {"object"}  # what is no object has no properties that contradict each other
            if not types:
                return None
        return types, values

    def joined(self, other: Outline, types: frozenset[str], values: frozenset[Any] | None) -> Outline | None:
        """Both, with what shared() told; None: nothing is both."""
        found = self._joined(other, types, values)
        if "object" in types and found.needed and not _possible(found.needed, found.only, found.never):
            types = types - {"object"}
            return found._replace(types=types) if types else None
        return found

    def _joined(self, other: Outline, types: frozenset[str], values: frozenset[Any] | None) -> Outline:
        named = self.named
        if other.named is not None:
            named = other.named if named is None else named & other.named
        literals, members = other.literals, other.members
        if not (self.held.isdisjoint(other.held) and self.violated.isdisjoint(other.violated)):
            known = frozenset(self.literals)
            literals = tuple(each for each in literals if each not in known)
            members = tuple(each for each in members if not any(each is mine for mine in self.members))
        return Outline(
            self.literals + literals,
            _union(self.held, other.held),
            _union(self.violated, other.violated),
            types,
            _union(self.needed, other.needed),
            _union(self.absent, other.absent),
            named,
            self.only + other.only,
            self.never + other.never,
            self.members + members,
            _union(self.broken, other.broken),
            _union(self.ways, other.ways),
            values,
        )

    def _beside(self, other: Outline) -> bool:
        """False: what the other one says of properties contradicts what objects need here."""
        if not self.needed.isdisjoint(other.absent):
            return False
        if other.named is not None and not self.needed <= other.named:
            return False
        return not self.broken or all(map(self.broken.isdisjoint, other.members))

    def covers(
        self, held: frozenset[tuple[int, str]], violated: frozenset[tuple[int, str]], types: frozenset[str]
    ) -> bool:
        """Whether it has no literal that another one has not: its values are the other's and more."""
        return self.held <= held and self.violated <= violated and self.types >= types

    def by(self, way: Alternative) -> Outline:
        return self._replace(ways=self.ways | {way})


def _possible(
    needed: frozenset[str],
    only: tuple[tuple[str, frozenset[Any]], ...],
    never: tuple[tuple[str, frozenset[Any]], ...],
) -> bool:
    """False: a property that is needed has no value left."""
    if not only:
        return True
    left: dict[str, frozenset[Any]] = {}
    for name, values in only:
        if name in needed:
            left[name] = left[name] & values if name in left else values
    for name, values in never:
        if name in left:
            left[name] = left[name] - values
    return all(left.values())


def _union(one: frozenset[Any], other: frozenset[Any]) -> frozenset[Any]:
    """Both; the one itself where the other is empty, as most are."""
    if not other:
        return one
    return one | other if one else other


EVERYTHING = Outline()


def outline(schemas: Schemas, literals: Iterable[Literal]) -> Outline | None:
    """Literals of one subschema; None: nothing satisfies them."""
    found: Outline | None = EVERYTHING
    plain: list[Literal] = []
    for literal in dict.fromkeys(literals):
        if literal[2] and literal[1] in _SAYS_NOTHING:
            plain.append(literal)
        elif found is not None:
            found = found.meet(_outline(schemas, *literal))
    if found is None or not plain:
        return found
    held = frozenset((number, keyword) for number, keyword, _ in plain)
    return found._replace(literals=(*found.literals, *plain), held=found.held | held)


def _outline(schemas: Schemas, number: int, keyword: str, wanted: bool) -> Outline:
    given = schemas[number].get(keyword)
    place = frozenset([(number, keyword)])
    found = Outline(
        ((number, keyword, wanted),),
        place if wanted else _NONE,
        _NONE if wanted else place,
        _types(schemas, number, keyword, wanted),
    )
    if wanted and keyword == "const":
        return found._replace(values=frozenset([frozen(given)]))
    if wanted and keyword == "enum" and isinstance(given, list):
        return found._replace(values=schemas.values(number))
    if keyword == "required" and isinstance(given, list):
        names = frozenset(name for name in given if isinstance(name, str))
        return found._replace(needed=names) if wanted else found._replace(absent=names)  # of one name then
    if keyword == "properties":
        members = {name: schemas.number(part) for name, part in given.items()}
        values = tuple(_values(schemas if wanted else schemas.exact, members, wanted))
        pairs = frozenset(members.items())
        if wanted:
            return found._replace(only=values, members=(pairs,))
        return found._replace(never=values, needed=frozenset(given), broken=pairs)
    closed = keyword == "additionalProperties" and wanted and given is False
    if closed and not schemas[number].get("patternProperties"):
        return found._replace(named=frozenset(schemas[number].get("properties", ())))
    return found


def _values(
    schemas: Schemas, members: Mapping[str, int], wanted: bool
) -> Iterator[tuple[str, frozenset[Any]]]:
    """Of the properties that a const or enum decides, those that satisfy (or, not wanted, never violate)."""
    for name, number in members.items():
        node = schemas[number]
        if not isinstance(node, Mapping) or not ("const" in node or isinstance(node.get("enum"), list)):
            continue
        values = frozenset([frozen(node["const"])]) if "const" in node else schemas.values(number)
        if not wanted:
            if len(node.keys() - {"type"}) > 1:
                continue  # one of the values may violate another keyword
            types = _types(schemas, number, "type", True) if "type" in node else _ALL
            values = frozenset(value for value in values if value[0] in types - {"number"})
        yield name, values


def _types(schemas: Schemas, number: int, keyword: str, wanted: bool) -> frozenset[str]:
    """The JSON types of values of one literal; integers are numbers."""
    if keyword in KINDS:
        return _ALL if wanted else _ONLY[KINDS[keyword]]
    given = schemas[number][keyword]
    if keyword == "type":
        return types_of(given, wanted)
    if wanted and keyword == "const":
        return frozenset([type_of(given)])
    if wanted and isinstance(given, list):
        return frozenset(map(type_of, given))
    return _ALL


def types_of(given: Any, wanted: bool = True) -> frozenset[str]:
    """The JSON types that a "type" allows (or, not wanted, excludes); all, where it is no type."""
    if isinstance(given, str) and wanted:
        return _OF_NAME.get(given, _ALL)
    names = {given} if isinstance(given, str) else set(map(str, given)) if isinstance(given, list) else _ALL
    if not names <= _NAMES:
        return _ALL  # whoever merges it says what is wrong
    if not wanted:
        return _ALL - names
    return _ALL & (names | {"number"} if "integer" in names else names)
