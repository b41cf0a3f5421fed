"""From a conjunction of subschemas to its cases: alternatives of one JSON type each.

1. *Literals.* $ref, allOf, anyOf, oneOf, not, if/then/else and the dependent keywords are multiplied
   out into lists of literals: (subschema, keyword, wanted or not). oneOf [A, B] is (A and not B) or
   (B and not A). A negated subschema is the union of its negated keywords.
2. *Types.* Each list is tried with each JSON type; literals of other types hold by themselves.
3. *Merging.* What is left of one type is merged: bounds to the tightest, members to conjunctions.
4. *Violations.* What must not hold is violated in what is merged (negated.py): again a union.
5. *Values.* const and enum become lists of values, filtered by all other literals (value.py).

What has no exact counterpart is refused by keyword, but only where a case depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.structured.schema.case import Case, Conjunction
from octavo.structured.schema.drafts import PARAM
from octavo.structured.schema.members import merge_array, merge_objects
from octavo.structured.schema.negated import Negation, parts_of
from octavo.structured.schema.outline import KINDS, TYPES, Literal, outline
from octavo.structured.schema.refs import Schemas
from octavo.structured.schema.value import holds

MAX_CASES = 128
_COMBINES = (
    "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired",
)  # fmt: skip


class Cases:
    """Cases of conjunctions, each worked out once."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._exact: Cases | None = None
        self._negation = Negation(schemas, self._is_empty)
        self._empty: dict[Conjunction, bool] = {}
        self._known: dict[Conjunction, list[Case]] = {}

    def of(self, conjunction: Conjunction) -> list[Case]:
        """The cases; none: nothing satisfies it.

        Raises:
            UnsupportedError: it depends on something that cannot be followed.
        """
        found = self._known.get(conjunction)
        if found is None:
            found = self._known[conjunction] = list(self._find(conjunction))
            self._schemas.spend(len(found))
            if len(found) > MAX_CASES:
                raise UnsupportedError("the JSON schema has too many combinations of its parts", PARAM)
        return found

    def is_everything(self, cases: list[Case]) -> bool:
        return {case.type for case in cases if case.is_free} >= set(TYPES)

    def _find(self, conjunction: Conjunction) -> Iterator[Case]:
        for literals in self._expand(sorted(conjunction), frozenset()):
            values = self._values(literals)
            if values is not None:
                if values:
                    yield Case("enum", values=values)
                continue
            for kind in TYPES:
                yield from self._merge(kind, literals)

    # --- 1. multiplying out -------------------------------------------------------------------------

    def _expand(self, todo: list[tuple[int, bool]], seen: frozenset[tuple[int, bool]]) -> list[list[Literal]]:
        """Lists of literals whose union is the conjunction of all in todo."""
        result: list[list[Literal]] = [[]]
        for number, wanted in todo:
            if (number, wanted) in seen:
                return []  # whoever asks whether a $ref leads back to itself finds no end
            branches = self._branches(number, wanted, seen | {(number, wanted)})
            result = self._multiply(result, branches)
            if len(result) > MAX_CASES:
                raise UnsupportedError("the JSON schema has too many combinations of its parts", PARAM)
        return result

    def _multiply(self, ours: list[list[Literal]], others: list[list[Literal]]) -> list[list[Literal]]:
        """Each list of the one with each of the other, but for those that contradict each other."""
        members = sum(map(len, ours)) * len(others) + sum(map(len, others)) * len(ours)
        self._schemas.spend(1 + len(ours) * len(others) + members // 16)  # copying a literal is no work
        if len(ours) == 1 and not ours[0]:
            return others
        outlined = [(literals, outline(self._schemas, literals)) for literals in others]
        result = []
        for literals in ours:
            mine = outline(self._schemas, literals)
            result += [literals + more for more, other in outlined if mine.agrees(other)]
        return result

    def _branches(self, number: int, wanted: bool, seen: frozenset[tuple[int, bool]]) -> list[list[Literal]]:
        schema = (self._schemas if wanted else self._schemas.exact)[number]
        if isinstance(schema, bool):
            return [[]] if schema is wanted else []
        plain: list[Literal] = [
            (number, k, wanted) for k in schema if k in KINDS or k in ("type", "const", "enum")
        ]
        plain = [literal for literal in plain if literal[1] != "dependentRequired"]
        groups = [self._combined(number, keyword, wanted, seen) for keyword in _COMBINES if keyword in schema]
        if not wanted:
            union = [[part] for literal in plain for part in self._parts(literal)]
            return union + [branch for group in groups for branch in group]
        result = [plain]
        for group in groups:
            result = self._multiply(result, group)
        return result

    def _parts(self, literal: Literal) -> list[Literal]:
        """A violated keyword as violations of which one is enough; none: it cannot be violated."""
        number, keyword, _ = literal
        schema = self._schemas.exact[number]
        if keyword == "format" or (keyword == "uniqueItems" and schema[keyword] is False):
            return []
        parts = parts_of(schema, keyword)
        if parts is None:
            return [literal]
        self._schemas.spend(len(parts))
        return [(self._schemas.synthetic(part), keyword, False) for part in parts]

    def _combined(
        self, number: int, keyword: str, wanted: bool, seen: frozenset[tuple[int, bool]]
    ) -> list[list[Literal]]:
        """One combining keyword as a union of lists of literals."""
        schema, ids = self._schemas[number], self._schemas.number
        value = schema[keyword]

        def all_of(*parts: tuple[int, bool]) -> list[list[Literal]]:
            return self._expand(list(parts), seen)

        def union(*lists: list[list[Literal]]) -> list[list[Literal]]:
            return [one for each in lists for one in each]

        match keyword:
            case "$ref":
                return all_of((self._schemas.target(number, value), wanted))
            case "$dynamicRef":
                return all_of((self._schemas.dynamic_target(number, value), wanted))
            case "not":
                return all_of((ids(value), not wanted))
            case "allOf" | "anyOf":
                parts = [(ids(part), wanted) for part in value]
                if (keyword == "allOf") is wanted:
                    return all_of(*parts)
                return union(*(all_of(part) for part in parts))
            case "oneOf":
                return self._one_of([ids(part) for part in value], wanted, seen)
            case "if":
                then, other = ids(schema.get("then", True)), ids(schema.get("else", True))
                test = ids(value)
                return union(all_of((test, True), (then, wanted)), all_of((test, False), (other, wanted)))
            case _:
                return self._dependent(number, keyword, wanted, seen)

    def _one_of(
        self, parts: list[int], wanted: bool, seen: frozenset[tuple[int, bool]]
    ) -> list[list[Literal]]:
        result: list[list[Literal]] = []
        if not wanted:  # none of them holds, or two of them do
            result += self._expand([(part, False) for part in parts], seen)
            for at, one in enumerate(parts):
                for other in parts[:at]:
                    if one == other or not self._disjoint(one, other):
                        result += self._expand([(one, True), (other, True)], seen)
            return result
        for chosen in parts:
            others = [other for other in parts if other is not chosen]
            if parts.count(chosen) > 1:
                continue
            overlapping = [o for o in others if not self._disjoint(chosen, o)]
            result += self._expand([(chosen, True), *((o, False) for o in overlapping)], seen)
        return result

    def _disjoint(self, one: int, other: int) -> bool:
        """Whether nothing satisfies both, words apart that are foreign to their draft."""
        self._schemas.spend(1)
        return self._is_empty(frozenset({(one, True), (other, True)}), True)

    def _is_empty(self, conjunction: Conjunction, exact: bool) -> bool:
        """Whether nothing satisfies it, as far as can be told: what leads back to itself cannot."""
        if exact and (view := self._schemas.exact) is not self._schemas:
            if self._exact is None:
                self._exact = Cases(view)
            return self._exact._is_empty(conjunction, True)
        if conjunction not in self._empty:
            self._empty[conjunction] = False
            with suppress(UnsupportedError):
                self._empty[conjunction] = all(map(self._is_impossible, self.of(conjunction)))
        return self._empty[conjunction]

    def _is_impossible(self, case: Case) -> bool:
        """Whether a member that must be there cannot be."""
        if case.values is not None:
            return False
        least = case.bounds.get("minItems", 0)
        places = [*case.prefix, case.items][: int(least)] if case.type == "array" else []
        needed = [case.properties[name] for name in case.required if name in case.properties]
        return any(self._is_empty(place, False) for place in (*places, *needed) if place)

    def _dependent(
        self, number: int, keyword: str, wanted: bool, seen: frozenset[tuple[int, bool]]
    ) -> list[list[Literal]]:
        """dependentRequired, dependentSchemas: for each name, it is absent or its demand holds."""
        result: list[list[Literal]] = [[]] if wanted else []
        for name, demand in self._schemas[number][keyword].items():
            of_names = keyword == "dependentRequired"
            asked = (
                self._schemas.synthetic({"required": demand}) if of_names else self._schemas.number(demand)
            )
            present = (self._schemas.synthetic({"type": "object", "required": [name]}), True)
            if not wanted:
                result += self._expand([present, (asked, False)], seen)
                continue
            absent = self._schemas.synthetic({"properties": {name: False}})
            branches = self._expand([(absent, True)], seen) + self._expand([present, (asked, True)], seen)
            result = self._multiply(result, branches)
            if len(result) > MAX_CASES:
                raise UnsupportedError("the JSON schema has too many combinations of its parts", PARAM)
        return result

    # --- 5. values ----------------------------------------------------------------------------------

    def _values(self, literals: list[Literal]) -> list[Any] | None:
        """The values that const and enum leave, or None where there is neither."""
        values: list[Any] | None = None
        source: Literal | None = None
        for number, keyword, wanted in literals:
            if keyword in ("const", "enum") and wanted:
                given = self._schemas[number][keyword]
                if keyword == "enum" and not isinstance(given, list):
                    raise InvalidRequestError("enum must be a list", PARAM)
                values, source = given if keyword == "enum" else [given], (number, keyword, wanted)
                break
        if values is None:
            return None
        rest = [literal for literal in literals if literal != source]
        self._schemas.spend(len(values) * (1 + len(rest)))
        return [v for v in values if all(holds(self._schemas, v, *literal) for literal in rest)]

    # --- 2 to 4. types, merging, violations ----------------------------------------------------------

    def _merge(self, kind: str, literals: list[Literal]) -> list[Case]:
        """The cases of one type; none: no value of this type will do."""
        self._schemas.spend(1 + len(literals) // 8)
        case = Case(kind)
        objects: list[int] = []
        violated: list[Literal] = []
        for number, keyword, wanted in literals:
            schema = self._schemas[number]
            if keyword == "type":
                if not self._allow_type(case, schema["type"], wanted):
                    return []
            elif keyword in ("const", "enum"):  # negated: wanted ones were dealt with
                violated.append((number, keyword, wanted))
            elif KINDS[keyword] != kind:
                if not wanted:
                    return []  # a keyword of another type holds here, so it cannot be violated
            elif not wanted:
                if keyword not in ("required", "properties"):
                    violated.append((number, keyword, wanted))
                elif not self._negation.demand(case, number, keyword):
                    return []
            elif kind == "array" or kind == "object":
                if number not in objects:
                    objects.append(number)
            else:
                case.tighten(keyword, schema[keyword])
        for number in objects:
            if kind == "array":
                merge_array(self._schemas, case, number)
        if kind == "object":
            merge_objects(self._schemas, case, objects, self.of)
        return self._violate(case, violated)

    def _violate(self, case: Case, violated: list[Literal]) -> list[Case]:
        cases = [case] if self._may_be(case) else []
        for number, keyword, _ in violated:
            found: list[Case] = []
            for each in cases:
                try:
                    found += self._negation.apply(each, number, keyword)
                except UnsupportedError:
                    if not self._is_impossible(each):
                        raise
            self._schemas.spend(len(found))
            if len(found) > MAX_CASES:
                raise UnsupportedError("the JSON schema has too many combinations of its parts", PARAM)
            cases = [each for each in found if self._may_be(each)]
        return cases

    def _may_be(self, case: Case) -> bool:
        impossible = (self._schemas.number(False), True)
        if any(impossible in case.properties.get(name, ()) for name in case.required):
            return False
        return case.bounds_possible

    def _allow_type(self, case: Case, types: Any, wanted: bool) -> bool:
        names = [types] if isinstance(types, str) else types
        if not isinstance(names, list) or not all(n in (*TYPES, "integer") for n in names):
            raise InvalidRequestError(f"type {str(types)[:60]!r} is not a JSON type", PARAM)
        if case.type in ("number", "integer"):
            if "number" in names:
                return wanted
            if "integer" in names:
                if not wanted:
                    raise UnsupportedError("JSON schema: 'not' with type integer is not supported", PARAM)
                case.type = "integer"
                return True
            return not wanted
        return (case.type in names) is wanted
