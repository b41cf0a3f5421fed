"""Violating one keyword: as a union of simpler violations, or of cases that hold what the others ask.

Each union is exact, or says that it is narrower. What has none (a pattern that must not match, two items that
must be equal) is refused by name: LeftOutError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.case import Case, Conjunction
from octavo.structured.schema.equality import equal, type_of
from octavo.structured.schema.expression_nodes import UnreadableError
from octavo.structured.schema.expressions import complement, literal, meet
from octavo.structured.schema.refs import Schemas
from octavo.structured.schema.value import check_number, matches_pattern, satisfies

MAX_PLACES = 16
"""Of an array, any of which may hold what violates."""
MAX_EXCLUDED = 20_000
"""Characters of the expression for strings that must not be."""
NESTED = 32
"""Groups in each other, of which llguidance reads some 80."""

FEW_PLACES = 4
"""Of an array without such a bound: what violates stands at one of the first ones."""

_OPPOSITE = {
    "minimum": ("exclusiveMaximum", 0), "maximum": ("exclusiveMinimum", 0),
    "exclusiveMinimum": ("maximum", 0), "exclusiveMaximum": ("minimum", 0),
    "minLength": ("maxLength", -1), "maxLength": ("minLength", 1),
    "minItems": ("maxItems", -1), "maxItems": ("minItems", 1),
    "minProperties": ("maxProperties", -1), "maxProperties": ("minProperties", 1),
}  # fmt: skip


class LeftOutError(UnsupportedError):
    """There is no list of the cases that violate something."""


def parts_of(schema: Any, keyword: str) -> list[Any] | None:
    """Schemas of which one is violated if the keyword is; None: it is one already."""
    given = schema[keyword]
    if keyword == "required" and isinstance(given, list) and len(given) > 1:
        return [{"required": [name]} for name in given]
    if keyword == "properties" and len(given) > 1:
        return [{"properties": {name: part}} for name, part in given.items()]
    return None


class Negation:
    """Violates a keyword in a case of its own type, into which all that must hold is merged.

    Args:
        is_empty: whether nothing satisfies a conjunction, as far as can be told; the second argument: even
            without words that are foreign to their draft.
        leave_out: told why not all cases are listed.
    """

    def __init__(
        self,
        schemas: Schemas,
        is_empty: Callable[[Conjunction, bool], bool],
        leave_out: Callable[[UnsupportedError], None],
    ) -> None:
        self._schemas = schemas
        self._is_empty = is_empty
        self._leave_out = leave_out
        self._never: Conjunction = frozenset({(schemas.number(False), True)})

    def close(self) -> None:
        """Nothing more is violated: forget whom to ask and tell."""
        del self._is_empty, self._leave_out

    def apply(self, case: Case, number: int, keyword: str) -> Iterator[Case]:
        """The cases within this one that violate the keyword.

        Raises:
            LeftOutError: there is no such list of cases.
        """
        self._schemas.spend(1)
        schema = self._schemas.exact[number]
        value = schema[keyword]
        match keyword:
            case _ if keyword in _OPPOSITE:
                other, step = _OPPOSITE[keyword]
                check_number(keyword, value)
                if value + step >= 0 or not step:
                    yield _tighter(case, {other: value + step})
            case "const" | "enum":
                yield from self._exclude(case, [value] if keyword == "const" else value)
            case "additionalProperties" | "propertyNames" | "patternProperties":
                yield from self._one_property(case, number, keyword)
            case "prefixItems" | "items":
                yield from self._one_item(case, schema, keyword)
            case "pattern" if (others := complement(value)) is not None:
                yield replace(case, expressions=[*case.expressions, others])
            case "contains" if "minContains" not in schema and "maxContains" not in schema:
                never = frozenset({(self._schemas.number(value), False)})
                yield replace(case, prefix=[one | never for one in case.prefix], items=case.items | never)
            case _:
                _refuse(keyword)

    def demand(self, case: Case, number: int, keyword: str) -> bool:
        """Violate required or properties of one name, before anything is merged. False: nothing does."""
        value = self._schemas.exact[number][keyword]
        if keyword == "required" and not (isinstance(value, list) and all(isinstance(n, str) for n in value)):
            raise InvalidRequestError("required must be a list of names", PARAM)
        for name in value:
            if keyword == "properties":
                case.required[name] = None
            part = (self._schemas.number(False), True) if keyword == "required" else (
                self._schemas.number(value[name]), False
            )  # fmt: skip
            case.properties[name] = case.properties.get(name, frozenset()) | {part}
        return bool(value)

    # --- const and enum -----------------------------------------------------------------------------

    def _exclude(self, case: Case, values: list[Any]) -> Iterator[Case]:
        own = "number" if case.type == "integer" else case.type
        same = [value for value in values if type_of(value) == own]
        if not same:
            yield case
        elif own == "boolean":
            if left := [one for one in (True, False) if one not in same]:
                yield replace(case, values=left)
        elif own == "number":
            whole = case.type == "integer"
            excluded = sorted({value for value in same if not whole or value == int(value)})
            for low, high in zip([None, *excluded], [*excluded, None], strict=True):
                bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
                yield _tighter(case, {word: bound for word, bound in bounds.items() if bound is not None})
        elif own == "string":
            yield replace(case, expressions=[*case.expressions, all_but(same)])
        elif own != "null":
            if not all(equal(value, []) or equal(value, {}) for value in same):
                raise LeftOutError(
                    "JSON schema keyword 'not' with 'const' or 'enum' of arrays or objects inside is not "
                    "supported", PARAM,
                )  # fmt: skip
            yield _tighter(case, {"minItems" if own == "array" else "minProperties": 1})

    # --- objects ------------------------------------------------------------------------------------

    def _one_property(self, case: Case, number: int, keyword: str) -> Iterator[Case]:
        """Some property violates a keyword about those that it does not name.

        It is one of those that are known, or if none of them can, one of the others.
        """
        closed = not case.patterns and case.additional and self._is_empty(case.additional, False)
        found = False
        for name, member in case.properties.items():
            for part in self._about(number, keyword, name):
                found = True
                properties = {**case.properties, name: member | {(part, False)}}
                yield replace(case, properties=properties, required={**case.required, name: None})
        if closed:
            return
        where = " of an object that may have any properties"
        if found:
            self._leave_out(_unlisted(keyword, where))
            return
        try:
            others, whole = self._unnamed(case, number, keyword)
        except (UnreadableError, RecursionError):
            others, whole = [], False
        if not (others or whole):
            _refuse(keyword, where)
        if not whole:
            self._leave_out(_unlisted(keyword, where))
        yield from others

    def _unnamed(self, case: Case, number: int, keyword: str) -> tuple[list[Case], bool]:
        """Cases in which there is a property that nobody names, and each of them violates the keyword.

        So none of the others may be there that can be left out. The second: whether these are all cases in
        which a property violates it that nobody names (none of them: no property can).

        Raises:
            UnreadableError: of some expression of names.
        """
        schema, ids = self._schemas.exact[number], self._schemas.number
        patterns = schema.get("patternProperties", {})
        names = set(case.properties)
        aimed: list[tuple[tuple[str, ...], int]]
        others: tuple[str, ...] = ()
        if keyword == "additionalProperties":
            names = names.union(schema.get("properties", ()))
            aimed, others = [((), ids(schema[keyword]))], tuple(patterns)
        elif keyword == "patternProperties":
            aimed = [((pattern,), ids(each)) for pattern, each in patterns.items()]
        else:
            return [], False
        found: list[Case] = []
        open_ = not (case.additional and self._is_empty(case.additional, False))
        possible, whole = False, not open_ and len(aimed) == 1
        whole = whole and case.properties.keys() <= case.required.keys()
        for held, part in aimed:
            violated = frozenset({(part, False)})
            named = {name: part for name, part in case.properties.items() if name in case.required}
            made = replace(case, properties=named, patterns={}, additional=self._never)
            whole = whole and self._schemas[part] is False
            for pattern, member in case.patterns.items():
                self._schemas.spend(60)
                called = meet((pattern, *held), (*others, *_only(names, pattern, *held)))
                whole = whole and called is not None and meet((pattern,), (called,)) is None
                if called is not None and not self._is_empty(member | violated, False):
                    possible = True
                    made.patterns[called] = member | violated
            rest = case.additional | violated
            if open_ and not self._is_empty(rest, False):
                possible = True
                self._schemas.spend(60)
                named_ones = _only(names, *held)
                if not (held or others or named_ones or case.patterns):
                    made.additional = rest
                elif (called := meet(held, (*others, *named_ones, *case.patterns))) is not None:
                    made.patterns[called] = rest
            if made.patterns or made.additional != self._never:
                found.append(_tighter(made, {"minProperties": len(made.required) + 1}))
        return found, whole or not possible

    def _about(self, number: int, keyword: str, name: str) -> Iterator[int]:
        """The subschemas that the keyword holds against the property of this name."""
        schema, ids = self._schemas.exact[number], self._schemas.number
        if keyword == "propertyNames":
            if not satisfies(self._schemas.exact, name, ids(schema[keyword])):
                yield ids(False)
            return
        patterns = schema.get("patternProperties", {})
        self._schemas.spend(8 * len(patterns))
        matched = [ids(part) for pattern, part in patterns.items() if matches_pattern(pattern, name)]
        if keyword == "patternProperties":
            yield from matched
        elif name not in schema.get("properties", {}) and not matched:
            yield ids(schema[keyword])

    # --- arrays -------------------------------------------------------------------------------------

    def _one_item(self, case: Case, schema: Any, keyword: str) -> Iterator[Case]:
        """Some item violates what stands at its place: at any of them, or any item that may be does."""
        ids = self._schemas.number
        prefix = schema.get("prefixItems", [])
        if keyword == "prefixItems":
            for at, each in enumerate(prefix):
                yield self._with_item(case, at, ids(each))
            return
        start, part = len(prefix), ids(schema["items"])
        places = [*case.prefix[start:], case.items]
        if all(self._is_empty(place | {(part, True)}, True) for place in places):
            yield _tighter(case, {"minItems": start + 1})
            return
        most = case.bounds.get("maxItems", start + MAX_PLACES + 1)
        if case.items and self._is_empty(case.items, False):
            most = min(most, len(case.prefix))
        if most > start + MAX_PLACES:
            self._leave_out(_unlisted(keyword, " of an array that may have any length"))
            most = start + FEW_PLACES
        for at in range(start, most):
            yield self._with_item(case, at, part)

    def contain(self, case: Case, number: int) -> Iterator[Case]:
        """The cases within this one of an array in which some item satisfies the subschema."""
        places = [*case.prefix, case.items]
        if all(self._is_empty(place | {(number, False)}, True) for place in places):
            yield _tighter(case, {"minItems": 1})
            return
        most = case.bounds.get("maxItems", MAX_PLACES + 1)
        if case.items and self._is_empty(case.items, False):
            most = min(most, len(case.prefix))
        if most > MAX_PLACES:
            self._leave_out(
                UnsupportedError(
                    "JSON schema keyword 'contains' of an array that may have any length is only followed "
                    f"in its first {FEW_PLACES} items", PARAM,
                )
            )  # fmt: skip
            most = FEW_PLACES
        for at in range(most):
            yield self._with_item(case, at, number, True)

    def _with_item(self, case: Case, at: int, number: int, wanted: bool = False) -> Case:
        prefix = case.prefix + [case.items] * (at + 1 - len(case.prefix))
        prefix[at] = prefix[at] | {(number, wanted)}
        return _tighter(replace(case, prefix=prefix), {"minItems": at + 1})


def _only(names: set[str], *patterns: str) -> tuple[str, ...]:
    """An expression of those of the names that match all patterns, if there are any."""
    names = {name for name in names if all(matches_pattern(each, name) for each in patterns)}
    return (f"^(?:{'|'.join(map(literal, sorted(names)))})$",) if names else ()


def _tighter(case: Case, bounds: dict[str, Any]) -> Case:
    found = replace(case, bounds=dict(case.bounds))
    for keyword, bound in bounds.items():
        found.tighten(keyword, bound)
    return found


def all_but(words: list[str]) -> str:
    """An expression of all strings but these: they leave the words at some character, or end elsewhere."""
    following: dict[str, set[str]] = {"": set()}
    for word in words:
        for at, character in enumerate(word):
            following.setdefault(word[:at], set()).add(character)
            following.setdefault(word[: at + 1], set())
    if sum(map(len, following)) > MAX_EXCLUDED:
        raise LeftOutError("JSON schema keyword 'not' with an 'enum' of this length is not supported", PARAM)
    known, rests, apart = frozenset(words), dict[str, str](), list[str]()
    for beginning in sorted(following, key=len, reverse=True):  # each is written once, inside a shorter one
        characters = {at: literal(at) for at in sorted(following[beginning])}
        parts = [] if beginning in known else [""]
        parts.append((f"[^{''.join(characters.values())}]" if characters else r"[\s\S]") + r"[\s\S]*")
        parts += [one + rests[beginning + at] for at, one in characters.items() if beginning + at in rests]
        rest = f"(?:{'|'.join(parts)})"
        if beginning and len(beginning) % NESTED == 0:
            apart.append(literal(beginning) + rest)
        else:
            rests[beginning] = rest
    return f"^(?:{'|'.join([rests[''], *apart])})$"


def _unlisted(keyword: str, where: str = "") -> LeftOutError:
    return LeftOutError(f"JSON schema keyword 'not' with {keyword!r} inside{where} is not supported", PARAM)


def _refuse(keyword: str, where: str = "") -> None:
    raise _unlisted(keyword, where)
