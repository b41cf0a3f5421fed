"""Places: where in an answer an array must hold no item twice, which no grammar can follow.

A schema that written() made plain has alternatives at each place: schemas of one type, or lists of values.
A Place stands for such a set, and says what stands at the places inside. So a walk that knows an answer's
names and brackets knows at every point whether the array it is in asks for distinct items (json_walk.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from octavo.errors import UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.equality import frozen
from octavo.structured.schema.expressions import is_endless

UNIQUE = "uniqueItems"
MAX_PLACES = 5_000
MANY = 1_000_000
"""So many values of an item are more than any answer holds."""
_FREE: Mapping[str, Any] = {}
"""The alternative of any value."""


class Place(NamedTuple):
    """What may stand at a place.

    Attributes:
        names: the place of each named property; other: of the rest of the properties.
        prefix: the places of the first items; items: of those after them.
        unique: an array here holds no item twice, by one of its alternatives at least.
        roomy: there are more values than an answer could hold, whichever alternative it is.
        string: any text of a string that is not finished can go on in MANY ways.
        number: the same of a number: "any"; "positive": if it has no sign and is not 0; "integer": if it is
            not 0; "": not known.
        free: only strings may stand there, any of them.
    """

    names: Mapping[str, int] = {}
    other: int = 0
    prefix: Sequence[int] = ()
    items: int = 0
    unique: bool = False
    roomy: bool = False
    string: bool = False
    number: str = ""
    free: bool = False


_PLAIN = Place()


def places_of(schema: Any) -> list[Place]:
    """The places of a plain schema, the whole's is 1; an array in it asks for distinct items.

    0 is where nothing inside asks for them.

    Raises:
        UnsupportedError: what may stand at a place cannot be followed so, by name.
    """
    return _Builder(schema).places


def needs_search(places: Sequence[Place]) -> bool:
    """Whether an array of distinct items may hold something else than strings of which all may come."""
    return any(
        place.unique and not all(places[item].free for item in (*place.prefix, place.items))
        for place in places
    )


class _Builder:
    """Numbers the sets of alternatives that are met, from the whole inwards."""

    def __init__(self, schema: Any) -> None:
        self._definitions = schema.get("$defs", {})
        self._kept: list[Any] = []  # whose identities are keys
        self._alone: dict[int, int] = {}  # the set of a schema by itself, by its identity
        self._number: dict[frozenset[int], int] = {}
        self._counts: dict[int, int] = {}
        self._sets: list[list[Any]] = []
        self.places: list[Place] = [Place()]
        whole = {name: part for name, part in schema.items() if name != "$defs"}
        self._kept.append(whole)
        self._place_of([whole])
        for at in range(MAX_PLACES):
            if at == len(self._sets):
                break
            self.places.append(self._place(self._sets[at]))
        else:
            raise UnsupportedError(f"JSON schema keyword {UNIQUE!r} stands in too large a schema", PARAM)
        self._forget_untracked()

    def _place_alone(self, schema: Any) -> int:
        """The same of one schema that stays where it is: most are met many times."""
        found = self._alone.get(id(schema))
        if found is None:
            found = self._alone[id(schema)] = self._place_of([schema])
        return found

    def _place_of(self, schemas: Iterable[Any]) -> int:
        found: dict[int, Any] = {}
        seen: set[str] = set()
        for schema in schemas:
            self._flatten(schema, found, seen)
        key = frozenset(found)
        if key not in self._number:
            self._number[key] = len(self._sets) + 1
            self._sets.append(list(found.values()))
        return self._number[key]

    def _flatten(self, schema: Any, found: dict[int, Any], seen: set[str]) -> None:
        if schema is True or schema == {}:
            found[id(_FREE)] = _FREE
        elif schema is False:
            return
        elif "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name not in seen:
                seen.add(name)
                self._flatten(self._definitions[name], found, seen)
        elif "anyOf" in schema:
            for each in schema["anyOf"]:
                self._flatten(each, found, seen)
        else:
            self._kept.append(schema)
            found[id(schema)] = schema

    def _alternatives(self, schema: Any) -> list[Any]:
        found: dict[int, Any] = {}
        self._flatten(schema, found, set())
        return list(found.values())

    # --- a place ------------------------------------------------------------------------------------

    def _place(self, alternatives: list[Any]) -> Place:
        """Where its parts are, and whether its arrays ask; the rest is worked out where somebody needs it."""
        free = any(each is _FREE for each in alternatives)
        listed = [value for each in alternatives for value in each.get("enum", ())]
        objects = [each for each in alternatives if each.get("type") == "object"]
        arrays = [each for each in alternatives if each.get("type") == "array"]
        dicts = [value for value in listed if isinstance(value, dict)]
        lists = [value for value in listed if isinstance(value, list)]
        if not (free or objects or arrays or dicts or lists):
            return _PLAIN
        rest = [True] * free + [part for each in objects for part in _others(each)]
        firsts = max((len(each.get("prefixItems", ())) for each in arrays), default=0)
        firsts = max([firsts, *map(len, lists)])
        return Place(
            self._names(free, objects, dicts),
            self._place_of(rest),
            [
                self._place_of(
                    [True] * free
                    + [_item(each, at) for each in arrays]
                    + [{"enum": [value[at]]} for value in lists if at < len(value)]
                )
                for at in range(firsts)
            ],
            self._place_of([True] * free + [each.get("items", True) for each in arrays]),
            self._unique(arrays, lists),
        )

    def _known(self, place: Place, alternatives: list[Any]) -> Place:
        """With what its values are like."""
        return place._replace(
            roomy=bool(alternatives) and all(self._count(each) >= MANY for each in alternatives),
            string=all(map(_is_open_string, alternatives)),
            number=_openness(alternatives),
            free=bool(alternatives) and all(each == {"type": "string"} for each in alternatives),
        )

    def _names(self, free: bool, objects: list[Any], dicts: list[Any]) -> dict[str, int]:
        """The places of properties that alternatives name."""
        if len(objects) == 1 and not free and not dicts:
            named = objects[0].get("properties", _FREE)
            return {name: self._place_alone(part) for name, part in named.items()}
        names = dict.fromkeys(name for each in objects for name in each.get("properties", {}))
        names |= dict.fromkeys(name for value in dicts for name in value)
        return {
            name: self._place_of(
                [True] * free
                + [p for each in objects for p in _member(each, name)]
                + [{"enum": [value[name]]} for value in dicts if name in value]
            )
            for name in names
        }

    def _unique(self, arrays: list[Any], lists: list[Any]) -> bool:
        """Where one alternative asks for it all are held to it: which of them is meant nobody knows yet."""
        several = [each for each in arrays if each.get("maxItems", math.inf) > 1]
        if not any(each.get(UNIQUE) for each in several):
            return False
        if any(len({frozen(item) for item in value}) < len(value) for value in lists):
            raise UnsupportedError(
                f"JSON schema keyword {UNIQUE!r} in one alternative, beside an enum of arrays with an item "
                "twice, is not supported", PARAM,
            )  # fmt: skip
        for each in several:
            self._check(each)
        return True

    def _check(self, array: Any) -> None:
        """Refuse an array whose items may run out before there are enough."""
        least = array.get("minItems", 0)
        if least < 2:
            return
        firsts = [_item(array, at) for at in range(len(array.get("prefixItems", ())))]
        enough = all(self._count_at(each) >= MANY for each in firsts[:least])
        if not enough or (len(firsts) < least and not self._has(array.get("items", True), least)):
            raise UnsupportedError(
                f"JSON schema keyword {UNIQUE!r} with minItems {least} is only supported where there are "
                "known to be so many items", PARAM,
            )  # fmt: skip

    def _has(self, schema: Any, least: int) -> bool:
        """Whether so many values may stand there, as far as can be told."""
        return self._count_at(schema) >= least or any(
            each.keys() == {"type", "pattern"} and is_endless(each["pattern"])
            for each in self._alternatives(schema)
        )

    def _check_order(self, alternatives: list[Any]) -> None:
        """Refuse items of few values that can be written in several orders: texts do not tell them apart."""
        for each in alternatives:
            if each.get("type") != "object":
                continue
            named = [part for part in each.get("patternProperties", {}).values() if part is not False]
            rest = each.get("additionalProperties", True)
            bounded = rest is False or "maxProperties" in each
            loose = [*named, *([] if rest is False else [rest])]
            if bounded and any(self._count_at(part) < MANY for part in loose):
                raise UnsupportedError(
                    f"JSON schema keyword {UNIQUE!r} of objects whose properties are named by patterns, or "
                    "are counted, and have few values is not supported", PARAM,
                )  # fmt: skip

    def _forget_untracked(self) -> None:
        """Places that hold no array of distinct items, and stand in none, become 0."""
        needed = [place.unique for place in self.places]
        inside: list[list[int]] = [
            [*place.names.values(), place.other, *place.prefix, place.items] for place in self.places
        ]
        holders: list[list[int]] = [[] for _ in self.places]
        for at, parts in enumerate(inside):
            for part in parts:
                holders[part].append(at)
        _spread(needed, holders)
        below = [False] * len(self.places)
        for place in self.places:
            if place.unique:
                for part in (*place.prefix, place.items):
                    below[part] = True
        _spread(below, inside)
        for at, alternatives in enumerate(self._sets, 1):
            if below[at]:
                self._check_order(alternatives)
        needed = [one or other for one, other in zip(needed, below, strict=True)]
        needed[0] = False

        def kept(number: int) -> int:
            return number if needed[number] else 0

        self.places = [
            self._known(place, self._sets[at - 1])._replace(
                names={name: kept(number) for name, number in place.names.items()},
                other=kept(place.other),
                prefix=list(map(kept, place.prefix)),
                items=kept(place.items),
            )
            if needed[at] or at == 1
            else _PLAIN
            for at, place in enumerate(self.places)
        ]

    # --- how many values ----------------------------------------------------------------------------

    def _count_at(self, schema: Any) -> int:
        """At least so many values may stand there, MANY at most."""
        alternatives = self._alternatives(schema)
        listed = {frozen(value) for each in alternatives for value in each.get("enum", ())}
        return max([len(listed), *(self._count(each) for each in alternatives)])

    def _count(self, schema: Any) -> int:
        if id(schema) not in self._counts:
            self._counts[id(schema)] = 0  # what leads back to itself finds none there
            self._counts[id(schema)] = self._counted(schema)
        return self._counts[id(schema)]

    def _counted(self, schema: Any) -> int:
        if "enum" in schema:
            return len({frozen(value) for value in schema["enum"]})
        match schema.get("type"):
            case None:
                return MANY
            case "boolean":
                return 2
            case "string":
                return _count_strings(schema)
            case "number" | "integer":
                return _count_numbers(schema)
            case "array":
                return self._count_arrays(schema)
            case "object":
                return self._count_objects(schema)
        return 1

    def _count_arrays(self, schema: Any) -> int:
        most, least = schema.get("maxItems", math.inf), schema.get("minItems", 0)
        firsts = schema.get("prefixItems", ())
        found = [self._count_at(each) for each in firsts[: min(most, len(firsts))]]
        if most > len(firsts):
            rest = self._count_at(schema.get("items", True))
            if rest and most == math.inf and not schema.get(UNIQUE):
                return MANY
            found.append(rest)
        return max([1 if least == 0 else 0, *found])

    def _count_objects(self, schema: Any) -> int:
        rest = schema.get("additionalProperties", True)
        if "maxProperties" not in schema and rest is not False and self._count_at(rest):
            return MANY
        counts, needed = 1, schema.get("required", ())
        if "maxProperties" in schema or "minProperties" in schema:
            return 1
        for name, part in schema.get("properties", {}).items():
            counts *= max(1, self._count_at(part) + (name not in needed))
            if counts >= MANY:
                return MANY
        return counts


def _spread(marked: list[bool], to: Sequence[Sequence[int]]) -> None:
    """Mark all that is reached from what is marked."""
    waiting = [at for at, one in enumerate(marked) if one]
    while waiting:
        for other in to[waiting.pop()]:
            if not marked[other]:
                marked[other] = True
                waiting.append(other)


def _others(schema: Any) -> list[Any]:
    return [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", True)]


def _member(schema: Any, name: str) -> list[Any]:
    known = schema.get("properties", {})
    return [known[name]] if name in known else _others(schema)


def _item(schema: Any, at: int) -> Any:
    firsts = schema.get("prefixItems", ())
    return firsts[at] if at < len(firsts) else schema.get("items", True)


_LIMITS = ("maxLength", "pattern", "format", "allOf")


def _is_open_string(schema: Any) -> bool:
    if "enum" in schema:
        return not any(isinstance(value, str) for value in schema["enum"])
    return schema.get("type", "string") != "string" or not any(word in schema for word in _LIMITS)


def _count_strings(schema: Any) -> int:
    if "pattern" in schema or "allOf" in schema:
        return 1
    most = schema.get("maxLength", math.inf)
    return MANY if most >= 4 and not ("format" in schema and most < math.inf) else 1


def _openness(alternatives: Iterable[Any]) -> str:
    """What Place.number says."""
    found = {"any"}
    for schema in alternatives:
        if any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in schema.get("enum", ())):
            return ""
        if schema.get("type") not in ("number", "integer"):
            continue
        bounded = [word for word in ("maximum", "exclusiveMaximum", "multipleOf") if word in schema]
        below = [word for word in ("minimum", "exclusiveMinimum") if word in schema]
        if bounded or (below and schema["type"] == "number"):
            return ""
        found.add("positive" if below else "integer" if schema["type"] == "integer" else "any")
    return next(word for word in ("positive", "integer", "any") if word in found)


def _count_numbers(schema: Any) -> int:
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    if high - low == math.inf:
        return MANY
    if schema["type"] == "number" and "multipleOf" not in schema:
        return MANY if low < high else 1
    step = schema.get("multipleOf", 1)
    return int(max(1, min(MANY, (high - low) / max(step, 1) - 1)))
