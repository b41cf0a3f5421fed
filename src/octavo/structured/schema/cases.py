"""From a conjunction of subschemas to its cases: alternatives of one JSON type each.

1. *Literals.* $ref, allOf, anyOf, oneOf, not, if/then/else and the dependent keywords are multiplied
   out into lists of literals: (subschema, keyword, wanted or not). oneOf [A, B] is (A and not B) or
   (B and not A). A negated subschema is the union of its negated keywords.
2. *Types.* Each list is tried with each JSON type; literals of other types hold by themselves.
3. *Merging.* What is left of one type is merged: bounds to the tightest, members to conjunctions.
4. *Violations.* What must not hold is violated in what is merged (negated.py): again a union.
5. *Values.* const and enum become lists of values, filtered by all other literals (value.py).

What has no exact counterpart is refused by keyword, but only where a case depends on it. A violation is a
union: of the ways to violate something, those that cannot be followed are left out, and so are the most
restrictive ones where there are too many. Then answers are valid still, but not every valid value can be
written. No way through the author's own alternatives (of anyOf, oneOf, if) is lost like that: where nothing
of one is left, the schema is refused. What has been left out never counts as impossible.
"""

from __future__ import annotations

from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.case import Case, Conjunction
from octavo.structured.schema.equality import type_of
from octavo.structured.schema.members import merge_array, merge_objects, object_alone
from octavo.structured.schema.negated import LeftOutError, Negation, parts_of
from octavo.structured.schema.outline import (
    EVERYTHING,
    KINDS,
    TYPES,
    Alternative,
    Literal,
    Outline,
    outline,
    types_of,
)
from octavo.structured.schema.products import FEW, MAX_CASES, Products, too_many
from octavo.structured.schema.refs import Schemas
from octavo.structured.schema.value import holds

FEW_WHOLE = 8
"""Lists of a subschema at most that are compared with others one by one."""
MANY = 6
"""Alternatives of a oneOf of which no two are tried together where it must not hold."""
_COMBINES = (
    "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependentRequired",
)  # fmt: skip
_PLAIN = (KINDS.keys() | {"type", "const", "enum"}) - {"dependentRequired"}
"""Words that a value has to satisfy by itself."""
_INVOLVED = frozenset([*_COMBINES, "contains", "propertyNames"])
"""Words that combine subschemas, or what is left out of them: the long way alone knows them."""
_SIZES_AND_PATTERNS = frozenset(
    ["const", "enum", "maxProperties", "minProperties", "patternProperties", "unevaluatedProperties"]
)
_OF_ITEMS = frozenset(["type", "items"])
_NAMES = (*TYPES, "integer")
_VALUES, _WITH_VALUES = frozenset(["const", "enum"]), frozenset(["const", "enum", "type"])


class Cases:
    """Cases of conjunctions, each worked out once.

    Args:
        most: lists for one place that are kept where violations make more.

    Attributes:
        narrow: why something was left out of what has been worked out so far.
    """

    def __init__(self, schemas: Schemas, most: int = MAX_CASES) -> None:
        self._schemas = schemas
        self._most = most
        self._exact: Cases | None = None
        self._products = Products(schemas, most, self._leave_out)
        self._negation = Negation(schemas, self._is_empty, self._leave_out)
        self._empty: dict[Conjunction, bool] = {}
        self._apart: dict[tuple[int, int], bool] = {}  # of two subschemas, the smaller number first
        self._known: dict[Conjunction, list[Case]] = {}
        self._narrowed: dict[Conjunction, UnsupportedError] = {}
        self._lists: dict[tuple[int, bool], tuple[list[Outline], UnsupportedError | None]] = {}
        self._left_out: UnsupportedError | None = None  # of what is being worked out
        self._open: set[tuple[int, bool]] = set()  # what is being worked out, and
        self._cut = False  # whether what is being worked out leads back to itself

    @property
    def narrow(self) -> tuple[UnsupportedError, ...]:
        return tuple(self._narrowed.values())

    def close(self) -> None:
        """Nothing more is worked out."""
        self._negation.close()
        self._products.close()
        if self._exact is not None:
            self._exact.close()

    def of(self, conjunction: Conjunction) -> list[Case]:
        """The cases; none: nothing satisfies it.

        Raises:
            UnsupportedError: it depends on something that cannot be followed.
        """
        found = self._known.get(conjunction)
        if found is None:
            outer = self._left_out, self._cut
            self._left_out = None
            try:
                found = self._find(conjunction)
                if self._left_out is not None:
                    self._narrowed[conjunction] = self._left_out
            finally:
                self._left_out, self._cut = outer
            self._known[conjunction] = found
            self._schemas.spend(len(found))
            if len(found) > MAX_CASES:
                raise too_many()
        return found

    def is_everything(self, cases: list[Case]) -> bool:
        return len(cases) >= len(TYPES) and {case.type for case in cases if case.is_free} >= set(TYPES)

    def _find(self, conjunction: Conjunction) -> list[Case]:
        if len(conjunction) == 1:
            ((number, wanted),) = conjunction
            schema = self._schemas[number]
            if wanted and isinstance(schema, dict):
                if len(schema) == 1 and schema.get("type") in _NAMES:
                    self._schemas.spend(1)
                    return [Case(schema["type"])]
                if _INVOLVED.isdisjoint(schema):
                    words = _PLAIN & schema.keys()
                    if words <= _WITH_VALUES or words.isdisjoint(_VALUES):
                        return self._alone(number, schema)
        return self._multiplied(conjunction)

    def _multiplied(self, conjunction: Conjunction) -> list[Case]:
        """The cases of any conjunction, from its lists of literals."""
        served: set[Alternative] = set()
        groups: list[list[Case]] = []
        lost: list[tuple[frozenset[Alternative], UnsupportedError]] = []
        for branch in self._expand(sorted(conjunction), frozenset()):
            values = self._values_of(branch)
            groups.append([Case("enum", values=values)] if values else [])
            for kind in TYPES if values is None else ():
                if kind not in branch.types:
                    continue
                try:
                    groups.append(self._merge(kind, branch.literals))
                except LeftOutError as error:
                    lost.append((branch.ways, error))
                else:
                    served |= branch.ways if groups[-1] else frozenset()
            served |= branch.ways if values else frozenset()
        for ways, why in lost:
            self._leave_out(why)
            if not (any(groups) and ways <= served):
                raise why
        if sum(map(len, groups)) > MAX_CASES:  # ways to violate something, of which the first ones do
            self._leave_out(too_many())
            quota = max(1, MAX_CASES // sum(map(bool, groups)))
            groups = [group[:quota] for group in groups]
        return [case for group in groups for case in group]

    def _alone(self, number: int, schema: dict[str, Any]) -> list[Case]:
        """The cases of a subschema that combines nothing, as most do: nothing has to be multiplied out."""
        if schema.get("type") == "object" and _SIZES_AND_PATTERNS.isdisjoint(schema):
            return object_alone(self._schemas, schema)
        if schema.get("type") == "array" and schema.keys() == _OF_ITEMS:
            self._schemas.spend(1)
            return [Case("array", items=self._schemas.demand(schema["items"]))]
        literals = tuple((number, word, True) for word in schema if word in _PLAIN)
        if (values := self._values(literals)) is not None:
            return [Case("enum", values=values)] if values else []
        types = types_of(schema["type"]) if "type" in schema else TYPES
        return [case for kind in TYPES if kind in types for case in self._merge(kind, literals)]

    def _leave_out(self, why: UnsupportedError) -> None:
        self._left_out = self._left_out or why.with_traceback(None)  # whose frames hold all that is known

    # --- 1. multiplying out -------------------------------------------------------------------------

    def _expand(self, todo: list[tuple[int, bool]], seen: frozenset[tuple[int, bool]]) -> list[Outline]:
        """Lists of literals whose union is the conjunction of all in todo."""
        result = [EVERYTHING]
        for number, wanted in todo:
            result = self._products.multiply(result, self._branches(number, wanted, seen))
        return result

    def _branches(self, number: int, wanted: bool, seen: frozenset[tuple[int, bool]]) -> list[Outline]:
        key = number, wanted
        if key in seen:
            self._cut = True
            return []  # whoever asks whether a $ref leads back to itself finds no end
        if key in self._lists:
            found, why = self._lists[key]
        else:
            outer = self._cut, self._left_out
            self._cut, self._left_out = False, None
            first = key not in self._open
            self._open.add(key)
            try:
                found = self._work_out(number, wanted, seen | {key})
            finally:
                if first:
                    self._open.discard(key)
            if not wanted:  # ways to violate something are nobody's alternatives
                found = [one._replace(ways=frozenset()) if one.ways else one for one in found]
            why = self._left_out
            if not self._cut:
                self._lists[key] = found, why
            self._cut, self._left_out = self._cut or outer[0], outer[1]
        if why is not None:
            self._leave_out(why)
        return found

    def _work_out(self, number: int, wanted: bool, seen: frozenset[tuple[int, bool]]) -> list[Outline]:
        view = self._schemas if wanted else self._schemas.exact
        schema = view[number]
        if isinstance(schema, bool):
            return [EVERYTHING] if schema is wanted else []
        plain: list[Literal] = [(number, word, wanted) for word in schema if word in _PLAIN]
        groups = (self._combined(number, word, wanted, seen) for word in _COMBINES if word in schema)
        if not wanted:
            parts = [outline(view, [part]) for literal in plain for part in self._parts(literal)]
            return [part for part in parts if part is not None] + [one for group in groups for one in group]
        first = outline(view, plain)
        if first is None:
            return []
        result = [first]
        for group in groups:
            result = self._products.multiply(result, group)
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
    ) -> list[Outline]:
        """One combining keyword as a union of lists of literals."""
        schema, ids = self._schemas[number], self._schemas.number
        value = schema[keyword]

        def all_of(*parts: tuple[int, bool]) -> list[Outline]:
            return self._expand(list(parts), seen)

        def any_of(*lists: list[Outline]) -> list[Outline]:
            if not wanted or len(lists) == 1:
                return [one for each in lists for one in each]
            return [one.by((number, keyword, at)) for at, each in enumerate(lists) for one in each]

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
                return any_of(*(all_of(part) for part in parts))
            case "oneOf":
                parts_of_it = [ids(part) for part in value]
                return self._one_of(number, parts_of_it, seen) if wanted else self._none_of(parts_of_it, seen)
            case "if":
                then, other = ids(schema.get("then", True)), ids(schema.get("else", True))
                test = ids(value)
                return any_of(all_of((test, True), (then, wanted)), all_of((test, False), (other, wanted)))
            case _:
                return self._dependent(number, keyword, wanted, seen)

    def _none_of(self, parts: list[int], seen: frozenset[tuple[int, bool]]) -> list[Outline]:
        """None of them holds, or two of them do."""
        result = self._expand([(part, False) for part in parts], seen)
        if result and len(parts) > MANY:
            self._leave_out(too_many())
            return result
        for at, one in enumerate(parts):
            for other in parts[:at]:
                if one == other or not self._disjoint(one, other):
                    result = result + self._expand([(one, True), (other, True)], seen)
        return result

    def _one_of(self, number: int, parts: list[int], seen: frozenset[tuple[int, bool]]) -> list[Outline]:
        """One of them holds, and none of those that may hold beside it."""
        beside = self._beside(number)
        result: list[Outline] = []
        for at, chosen in enumerate(parts):
            if parts.count(chosen) > 1:
                continue
            base = self._branches(chosen, True, seen)
            most = max(1, self._most // max(1, len(base) * len(parts)))
            overlapping = [o for o in parts if o != chosen and not self._disjoint(chosen, o, beside)]
            for one in base:
                left = [one.by((number, "oneOf", at))]
                for other in overlapping:
                    left = self._without(left, other, self._branches(other, False, seen), max(most, FEW))
                result += self._products.least(left, most)
        return result

    def _without(self, left: list[Outline], other: int, ways: list[Outline], most: int) -> list[Outline]:
        """The lists that violate another subschema too, in one of these ways.

        A list that contradicts it already, when it is only of types that can violate it, stays as it is.
        """
        types = frozenset[str]().union(*(way.types for way in ways))
        its = self._whole(other)
        kept: list[Outline] = []
        rest: list[Outline] = []
        for one in left:
            if its is not None and one.values is None:
                if not one.types <= types:
                    one = one._replace(types=one.types & types)
                if not one.types:
                    continue
                if not any(map(one.meets, its)):
                    kept.append(one)
                    continue
            rest.append(one)
        self._schemas.spend(len(left))
        if not rest:
            return kept
        made = self._products.fewest(rest, ways, most)
        return kept + made if kept else made

    def _whole(self, number: int) -> list[Outline] | None:
        """The lists of a subschema, where these are all and few."""
        if self._schemas.exact is not self._schemas or (number, True) in self._open:
            return None
        outer = self._left_out, self._cut
        self._left_out, self._cut = None, False
        try:
            found = self._branches(number, True, frozenset())
            return found if self._left_out is None and not self._cut and len(found) <= FEW_WHOLE else None
        except UnsupportedError:
            return None
        finally:
            self._left_out, self._cut = outer

    def _beside(self, number: int) -> tuple[tuple[int, bool], ...]:
        """What stands beside the combining keywords of a subschema, as one that holds."""
        node = self._schemas[number]
        plain = {word: value for word, value in node.items() if word in _PLAIN}
        return ((self._schemas.synthetic(plain), True),) if plain else ()

    def _disjoint(self, one: int, other: int, beside: tuple[tuple[int, bool], ...] = ()) -> bool:
        """Whether nothing satisfies both, words apart that are foreign to their draft."""
        self._schemas.spend(1)
        if self._never_meet(one, other):
            return True
        return self._is_empty(frozenset({(one, True), (other, True), *beside}), True)

    def _never_meet(self, one: int, other: int) -> bool:
        """Whether their literals tell already that nothing satisfies both."""
        key = (one, other) if one < other else (other, one)
        known = self._apart.get(key)
        if known is False or self._schemas.exact is not self._schemas:
            return False
        if (one, True) in self._open or (other, True) in self._open:
            return False
        if known is not None:
            return known
        outer = self._left_out, self._cut
        self._left_out, self._cut = None, False
        found = False
        try:
            mine, its = (self._branches(number, True, frozenset()) for number in (one, other))
            if self._left_out is None and len(mine) * len(its) <= MAX_CASES:
                found = not any(each.meets(part) for each in mine for part in its)
            if not self._cut:
                self._apart[key] = found
        except UnsupportedError:
            pass
        finally:
            self._left_out, self._cut = outer
        return found

    def _is_empty(self, conjunction: Conjunction, exact: bool) -> bool:
        """Whether nothing satisfies it, as far as can be told: what leads back to itself cannot."""
        if exact and (view := self._schemas.exact) is not self._schemas:
            if self._exact is None:
                self._exact = Cases(view)
            return self._exact._is_empty(conjunction, True)
        if conjunction not in self._empty:
            self._empty[conjunction] = False
            self._empty[conjunction] = self._has_no_case(conjunction)
        return self._empty[conjunction]

    def _has_no_case(self, conjunction: Conjunction) -> bool:
        """Whether there is none that may be, and nothing was left out. The first one that may be ends it."""
        outer = self._left_out, self._cut
        self._left_out = None
        try:
            if len(conjunction) == 1:  # a place of its own most likely
                cases = self.of(conjunction)
                return conjunction not in self._narrowed and all(map(self._is_impossible, cases))
            for branch in self._expand(sorted(conjunction), frozenset()):
                values = self._values_of(branch)
                if values:
                    return False
                for kind in TYPES if values is None else ():
                    if kind in branch.types and not all(
                        map(self._is_impossible, self._merge(kind, branch.literals))
                    ):
                        return False
            return self._left_out is None
        except UnsupportedError:
            return False
        finally:
            self._left_out, self._cut = outer

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
    ) -> list[Outline]:
        """dependentRequired, dependentSchemas: for each name, it is absent or its demand holds."""
        result = [EVERYTHING] if wanted else []
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
            result = self._products.multiply(result, branches)
        return result

    # --- 5. values ----------------------------------------------------------------------------------

    def _values_of(self, branch: Outline) -> list[Any] | None:
        """The same of a list, which may be of fewer types than its literals."""
        values = self._values(branch.literals)
        return None if values is None else [each for each in values if type_of(each) in branch.types]

    def _values(self, literals: tuple[Literal, ...]) -> list[Any] | None:
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
        if len(rest) == 1 and rest[0][1:] == ("type", True) and self._schemas[rest[0][0]]["type"] == "string":
            return [value for value in values if isinstance(value, str)]  # most say what they are
        return [v for v in values if all(holds(self._schemas, v, *literal) for literal in rest)]

    # --- 2 to 4. types, merging, violations ----------------------------------------------------------

    def _merge(self, kind: str, literals: tuple[Literal, ...]) -> list[Case]:
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
        for number in case.contained:
            cases = [
                each for one in cases for each in self._negation.contain(one, number) if self._may_be(each)
            ]
            self._schemas.spend(len(cases))
            if len(cases) > MAX_CASES:
                raise too_many()
        why: LeftOutError | None = None
        for number, keyword, _ in violated:
            found: list[Case] = []
            for each in cases:
                try:
                    found += self._negation.apply(each, number, keyword)
                except LeftOutError as error:
                    if not self._is_impossible(each):
                        why = error
            self._schemas.spend(len(found))
            cases = [each for each in found if self._may_be(each)]
            if len(cases) > MAX_CASES:
                why, cases = LeftOutError(str(too_many()), PARAM), cases[:MAX_CASES]
        if why is not None:
            if not cases:
                raise why
            self._leave_out(why)
        return cases

    def _may_be(self, case: Case) -> bool:
        if case.required:
            impossible = (self._schemas.number(False), True)
            if any(impossible in case.properties.get(name, ()) for name in case.required):
                return False
        return not case.bounds or case.bounds_possible

    def _allow_type(self, case: Case, types: Any, wanted: bool) -> bool:
        if types == case.type:
            return wanted
        names = [types] if isinstance(types, str) else types
        if not isinstance(names, list) or not all(n in (*TYPES, "integer") for n in names):
            raise InvalidRequestError(f"type {str(types)[:60]!r} is not a JSON type", PARAM)
        if case.type in ("number", "integer"):
            if "number" in names:
                return wanted
            if "integer" in names:
                if not wanted:
                    raise LeftOutError("JSON schema: 'not' with type integer is not supported", PARAM)
                case.type = "integer"
                return True
            return not wanted
        return (case.type in names) is wanted
