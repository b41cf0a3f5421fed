"""JSON schemas (draft 2020-12) made simple for llguidance, or refused by keyword: never weakened.

llguidance follows type, properties, items, bounds and patterns exactly, but not what combines schemas.
So those are worked out here. A place in the answer has to satisfy a *conjunction*: a set of subschemas,
some of them negated. It is expanded into alternatives that combine nothing any more (cases.py):

    {allOf: [A, {anyOf: [B, C]}], not: D}   ->   A and B and not D,   or   A and C and not D

each of one JSON type, whose members are conjunctions again. A conjunction is written out once, under a
name of its own, so recursive schemas end: there are finitely many sets of subschemas.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, NamedTuple

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.case import Case, Conjunction
from octavo.structured.schema.cases import Cases
from octavo.structured.schema.counted import MAX_ALTERNATIVES, MAX_FIRST, MAX_SINGLE, counted
from octavo.structured.schema.equality import equal, frozen
from octavo.structured.schema.negated import LeftOutError
from octavo.structured.schema.patterns import without
from octavo.structured.schema.products import MAX_CASES
from octavo.structured.schema.refs import MAX_SUBSCHEMAS, Schemas, TooLargeError
from octavo.structured.schema.value import matches_pattern

SEVERAL, FEWEST = 32, 12
"""Ways to violate something that are kept at a place; and at one of a large schema, or of one that these make
too large. Where none of them can be followed more are tried."""
MANY_PARTS = 150
"""A schema of more subschemas is large."""
MAX_DEFINITIONS = 2_000
MAX_ARRAYS = 1_000
MAX_PROPERTIES = 900
"""Of the objects at one place: each may come next, as 4 items of a row of llguidance's parser. An alternative
is 8, an array or object of an enum 3. So rows stay within what is allowed (grammar.LIMITS)."""
MAX_PATTERNS = 200
"""In patternProperties and propertyNames, of all places: the work grows with their third power."""
MAX_ALL_PROPERTIES = 4_000
"""Of all places, merged ones counted each time."""

PARTLY = {
    "$dynamicRef": "where there is one $dynamicAnchor of the name, or the outermost resource has one",
    "$ref": "within the schema; nothing is fetched",
    "additionalItems": "after a list of items, which is what prefixItems is now",
    "contains": "of one item, which is one of the first 4 where there is no maxItems of at most 16; with "
    "minContains and maxContains where it is true or {}",
    "dependencies": "not beside the keyword that it has become, of names or of schemas",
    "exclusiveMaximum": "a number below 2^63 either way, or as in draft 4 a boolean",
    "exclusiveMinimum": "a number below 2^63 either way, or as in draft 4 a boolean",
    "format": "the formats below; any other constrains nothing",
    "items": "a schema, or as up to draft 2019-09 a list of them",
    "maxProperties": f"beside optional properties where {MAX_ALTERNATIVES} choices of them fit at most, or "
    f"{MAX_SINGLE} of which one may come; beside patternProperties where no name matches twice",
    "maximum": "below 2^63 either way",
    "minimum": "below 2^63 either way",
    "minProperties": "as maxProperties, but for one more than the required ones, "
    f"of {MAX_FIRST} others at most",
    "multipleOf": "one number for a place, below 2^63",
    "not": "not around multipleOf, uniqueItems, the unevaluated keywords, type integer, or const "
    "and enum of arrays and objects; around items by one of the first; around additionalProperties, "
    "propertyNames and patternProperties by properties that are named, or (not propertyNames) if none of "
    "them can by all others. Of several ways to violate something those that are not followed "
    "are left out, and so are the most demanding ones where there are too many",
    "oneOf": "where of each alternative something is left that violates those that may overlap (see not)",
    "pattern": "no back-references; look-behind for one character; look-ahead that is not repeated",
    "patternProperties": "of several schemas that are merged at a place where the patterns can be told apart",
    "prefixItems": "beside items only in draft 2020-12",
    "propertyNames": "const, enum, patterns and lengths",
    "unevaluatedItems": "beside items, prefixItems, $ref and allOf; not beside anyOf, oneOf, if or contains",
    "unevaluatedProperties": "beside properties, $ref, allOf; not beside anyOf, oneOf, if, dependentSchemas",
    "uniqueItems": "of several alternatives at a place for all, if for one; with minItems where there are "
    "known to be so many items; inside a grammar or a structural tag only of one item",
}
"""Where a keyword is followed, of those that are not followed everywhere. The rest is refused."""


class Written(NamedTuple):
    """A schema that was made simple.

    Attributes:
        narrow: why it allows less than what was given; nothing: it is equivalent.
        unique: the parts of it that ask for distinct items, which llguidance does not know.
    """

    schema: Any
    narrow: tuple[UnsupportedError, ...]
    unique: list[dict[str, Any]]


def written(schema: Any) -> Written:
    """A schema that llguidance follows exactly, but for distinct items.

    Raises:
        UnsupportedError: a keyword, or a use of one, that cannot be followed.
        InvalidRequestError: not a JSON schema, nothing can satisfy it, or it is too large.
    """
    schemas = Schemas(schema)
    if len(schemas) <= MANY_PARTS:
        with suppress(TooLargeError, LeftOutError):
            return _written(schemas, SEVERAL, MANY_PARTS)
        schemas = Schemas(schema)
    with suppress(LeftOutError):
        return _written(schemas, FEWEST)
    return _written(Schemas(schema), MAX_CASES)


def _written(schemas: Schemas, most: int, parts: int = MAX_SUBSCHEMAS) -> Written:
    writer = _Writer(schemas, most, parts)
    try:
        root = writer.place(frozenset({(0, True)}))
    finally:
        writer.close()
    if root is False:
        raise InvalidRequestError("nothing can satisfy this JSON schema", PARAM)
    if root is True:
        root = {}
    elif writer.definitions:
        root = {**root, "$defs": writer.definitions}
    return Written(root, writer.narrow, writer.unique)


_SHORT = frozenset(["type", "$ref"])
"""Of a schema with no other words nothing is gained by a name."""


class _Writer:
    """Writes conjunctions as plain schemas; those met again, under a name in $defs."""

    def __init__(self, schemas: Schemas, most: int, parts: int) -> None:
        self._schemas = schemas
        self._cases = Cases(schemas, most)
        self._parts = parts
        self._properties = self._patterns = 0
        self.definitions: dict[str, Any] = {}
        self.unique: list[dict[str, Any]] = []
        self._places: dict[Conjunction, Any] = {}
        self._same: dict[Any, Any] = {}  # what has been written of cases, or of patterns
        self._named = 0

    def close(self) -> None:
        """Let go of what refers to itself, so that it is freed at once and not by the collector."""
        self._cases.close()

    @property
    def narrow(self) -> tuple[UnsupportedError, ...]:
        """Why something was left out."""
        return self._cases.narrow

    def place(self, conjunction: Conjunction) -> Any:
        """The schema for a place: True, False, a small schema, or a reference."""
        if not conjunction:
            return True
        found = self._places.get(conjunction)
        if found is None:
            found = self._place(conjunction)
            self._places[conjunction] = found
        else:
            self._name(found)
        return found

    def _name(self, leaf: Any) -> None:
        """Give a schema that is met again a name, where it stands already too: llguidance reads it once."""
        if isinstance(leaf, dict) and not (leaf.keys() <= _SHORT) and len(leaf.get("enum", (None, None))) > 1:
            name = f"v{len(self.definitions)}"
            self.definitions[name] = dict(leaf)
            leaf.clear()
            leaf["$ref"] = f"#/$defs/{name}"

    def _place(self, conjunction: Conjunction) -> Any:
        if len(self._schemas) > self._parts:  # more came to light by a $ref into an annotation
            raise TooLargeError("the JSON schema is too large when written out", PARAM)
        cases = self._cases.of(conjunction)
        if not cases:
            return False
        if self._cases.is_everything(cases):
            return True
        if all(case.is_leaf for case in cases):
            return self._leaf(cases)
        key = tuple(map(_key, cases))
        if (same := self._same.get(key)) is not None:
            return same
        name = f"s{self._named}"
        self._named += 1
        if self._named > MAX_DEFINITIONS:
            raise TooLargeError("the JSON schema is too large when written out", PARAM)
        # For what leads back to it, and for other conjunctions that come to the same.
        self._places[conjunction] = self._same[key] = {"$ref": f"#/$defs/{name}"}
        self.definitions[name] = self._any_of(cases)
        if self.definitions[name] is False:
            self._same[key] = False
        return self._same[key]

    def _leaf(self, cases: list[Case]) -> Any:
        """Without members: of a pattern, which takes llguidance long, written at one place alone."""
        leaf = self._any_of(cases)
        if isinstance(leaf, dict) and "pattern" in leaf and "allOf" not in leaf:
            same = self._same.setdefault(tuple(leaf.items()), leaf)
            if same is not leaf:
                self._name(same)
            return same
        return leaf

    def _any_of(self, cases: list[Case]) -> Any:
        self._count(cases)
        written = [schema for schema in map(self._case, cases) if schema is not False]
        if not written:
            return False
        return written[0] if len(written) == 1 else {"anyOf": written}

    def _count(self, cases: list[Case]) -> None:
        """Refuse what makes rows of the parser too long, or the grammar too large."""
        objects = patterns = nested = 0
        for case in cases:
            objects += len(case.properties)
            patterns += len(case.patterns)
            if case.values:
                self._schemas.spend(len(case.values))
                nested += sum(isinstance(value, (dict, list)) for value in case.values)
        if 4 * objects + 8 * (len(cases) - 1) + 3 * nested > 4 * MAX_PROPERTIES:
            raise TooLargeError(
                f"the JSON schema has {objects} properties at one place, {len(cases)} alternatives and "
                f"{nested} arrays or objects in enum; at most {MAX_PROPERTIES} properties are taken, of "
                "which a further alternative takes two and an array or object of an enum one",
                PARAM,
            )
        self._properties += objects
        self._patterns += patterns
        if self._patterns > MAX_PATTERNS:
            raise TooLargeError(
                f"the JSON schema has more than {MAX_PATTERNS} patterns of names when written out", PARAM
            )
        if self._properties > MAX_ALL_PROPERTIES:
            raise TooLargeError(
                f"the JSON schema has more than {MAX_ALL_PROPERTIES} properties when written out", PARAM
            )

    def _case(self, case: Case) -> Any:
        if case.values is not None:
            return {"enum": case.values}
        schema: dict[str, Any] = {"type": case.type, **case.bounds}
        if case.type == "array":
            unique = case.unique and case.bounds.get("maxItems", 2) > 1
            if not unique:
                return self._array(case, schema)
            listed = self._distinct(case) if case.prefix else None
            if listed is not None:
                return listed
            schema["uniqueItems"] = True
            self.unique.append(schema)
            return self._array(case, schema)
        if case.type == "object":
            return self._object(case, schema)
        if case.expressions:
            schema["allOf"] = [{"pattern": each} for each in case.expressions]
        return schema

    def _array(self, case: Case, schema: dict[str, Any]) -> Any:
        prefix = [self.place(item) for item in case.prefix]
        items = self.place(case.items)
        most = case.bounds.get("maxItems")
        if False in prefix:  # the array ends before what cannot be
            at = prefix.index(False)
            prefix, items = prefix[:at], False
        if items is False:
            most = len(prefix) if most is None else min(most, len(prefix))
            schema["maxItems"] = most
        if most is not None and most < schema.get("minItems", 0):
            return False
        if prefix:
            schema["prefixItems"] = prefix
        schema["items"] = items
        return schema

    def _distinct(self, case: Case) -> Any:
        """All arrays without equal items, where they are few; None: they are not."""
        rest = self._finite(case.items)
        places = [self._finite(item) for item in case.prefix]
        if rest is None and case.bounds.get("maxItems", math.inf) <= len(places):
            rest = []  # there is no place for more
        most = case.bounds.get("maxItems", len(places) + len(rest or ()))
        if rest is None or None in places[:most]:
            return None
        arrays: list[list[Any]] = []
        longest: list[list[Any]] = [[]]
        for length in range(most + 1):
            if length >= case.bounds.get("minItems", 0):
                arrays += longest
            choices = places[length] if length < len(places) else rest
            self._schemas.spend(len(longest) * len(choices or ()) * (1 + length))
            longest = [
                [*array, value]
                for array in longest
                for value in choices or ()
                if not any(equal(value, item) for item in array)
            ]
            if len(arrays) + len(longest) > MAX_ARRAYS:
                return None
        return {"enum": arrays} if arrays else False

    def _finite(self, conjunction: Conjunction) -> list[Any] | None:
        """The values of a place, each once; None: too many to count."""
        if not conjunction:
            return None
        found: list[Any] = []
        for case in self._cases.of(conjunction):
            known: dict[str, list[Any]] = {"null": [None], "boolean": [True, False]}
            values = known.get(case.type) if case.values is None else case.values
            if values is None:
                return None
            self._schemas.spend(len(values))
            found += values
        return list({frozen(value): value for value in reversed(found)}.values())[::-1]

    def _object(self, case: Case, schema: dict[str, Any]) -> Any:
        written = {name: self.place(member) for name, member in case.properties.items()}
        if any(written.get(name) is False for name in case.required):
            return False
        patterns = {}
        for pattern, member in case.patterns.items():
            # what is named obeys the pattern already; llguidance would merge them again, in circles too
            named = [name for name in written if matches_pattern(pattern, name)]
            called = without(pattern, named) if named else pattern
            if called is not None:
                patterns[called] = self.place(member)
        if patterns:
            schema["patternProperties"] = patterns
        if written:
            schema["properties"] = written
        if case.required:
            schema["required"] = [name for name in written if name in case.required]
        schema["additionalProperties"] = self.place(case.additional)
        found = counted(schema)
        if found is not schema and isinstance(found, dict) and len(found.get("anyOf", ())) > 1:
            for member in (*written.values(), *patterns.values()):  # stand in several alternatives
                self._name(member)
        return found


def _key(case: Case) -> Any:
    """Equal for cases that are written the same."""
    return (
        case.type, None if case.values is None else frozen(case.values), tuple(case.bounds.items()),
        tuple(case.expressions), tuple(case.prefix), case.items, tuple(case.properties.items()),
        tuple(case.patterns.items()), case.additional, tuple(case.required), case.unique,
    )  # fmt: skip
