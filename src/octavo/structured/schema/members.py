"""Merging the members of arrays and objects: what several subschemas demand of each place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params.structured import PARAM
from octavo.structured.schema.case import Case, Conjunction
from octavo.structured.schema.expression_nodes import UnreadableError
from octavo.structured.schema.expressions import meet
from octavo.structured.schema.patterns import overlap, regions
from octavo.structured.schema.refs import Schemas
from octavo.structured.schema.value import matches_pattern, satisfies

_BRANCHES = ("anyOf", "oneOf", "if", "dependentSchemas")  # what `not` holds evaluates nothing
_MAX_NAME = 1_000
_OF_MEMBERS = frozenset(["properties", "patternProperties", "additionalProperties", "unevaluatedProperties"])
_REST = frozenset(["additionalProperties"])
_OF_OTHERS = _OF_MEMBERS - {"properties"}
_NO_PROPERTIES: Mapping[str, Any] = {}
_NOTHING: Conjunction = frozenset()


def merge_array(schemas: Schemas, case: Case, number: int) -> None:
    schema = schemas[number]
    for keyword in ("minItems", "maxItems"):
        if keyword in schema:
            case.tighten(keyword, schema[keyword])
    case.unique = case.unique or bool(schema.get("uniqueItems"))
    _contains(schemas, case, schema)
    rest: Conjunction = frozenset()
    own = [schemas.demand(part) for part in schema.get("prefixItems", ())]
    if "items" in schema:
        rest = schemas.demand(schema["items"])
    elif "unevaluatedItems" in schema and (left := schemas.demand(schema["unevaluatedItems"])):
        others = _beside(schemas, number, "unevaluatedItems", ("contains", *_BRANCHES))
        if not any("items" in other or "unevaluatedItems" in other for other in others):
            rest = left
        evaluated = max((len(other.get("prefixItems", ())) for other in others), default=0)
        own += [frozenset()] * (evaluated - len(own))
    length = max(len(own), len(case.prefix))
    own += [rest] * (length - len(own))
    case.prefix += [case.items] * (length - len(case.prefix))
    case.prefix = [a | b for a, b in zip(case.prefix, own, strict=True)]
    case.items = case.items | rest


def _contains(schemas: Schemas, case: Case, schema: Any) -> None:
    if "contains" not in schema:
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if least == 0 and most is None:
        return
    if schema["contains"] is True or schema["contains"] == {}:
        case.tighten("minItems", least)
        if most is not None:
            case.tighten("maxItems", most)
        return
    if least == 1 and most is None:
        case.contained = (*case.contained, schemas.number(schema["contains"]))
        return
    raise UnsupportedError(
        "JSON schema keyword 'contains' with 'minContains' or 'maxContains' is not supported", PARAM
    )


def _beside(
    schemas: Schemas, number: int, keyword: str, branches: tuple[str, ...] = _BRANCHES
) -> list[Mapping[str, Any]]:
    """The other subschemas that hold at the same place, whatever the value: through $ref and allOf.

    What they evaluate is not left to an unevaluated keyword of subschema `number`.

    Raises:
        UnsupportedError: which ones hold depends on the value.
    """
    found: dict[int, Mapping[str, Any]] = {}
    todo = [number]
    while todo:
        at = todo.pop()
        schema = schemas[at]
        if at in found or isinstance(schema, bool):
            continue
        _refuse_branches(schema, keyword, branches)
        found[at] = schema
        if "$ref" in schema:
            todo.append(schemas.target(at, schema["$ref"]))
        if "$dynamicRef" in schema:
            todo.append(schemas.dynamic_target(at, schema["$dynamicRef"]))
        todo += [schemas.number(part) for part in schema.get("allOf", ())]
    del found[number]
    return list(found.values())


def _refuse_branches(schema: Any, keyword: str, others: tuple[str, ...]) -> None:
    for other in others:
        if other in schema:
            raise UnsupportedError(
                f"JSON schema keyword {keyword!r} beside {other!r} is not supported", PARAM
            )


def object_alone(schemas: Schemas, schema: Mapping[str, Any]) -> list[Case]:
    """What merge_objects() makes of a subschema with properties, required and additionalProperties alone.

    Most objects are so. None: a property that must be there cannot be.
    """
    demand, case = schemas.demand, Case("object")
    if "additionalProperties" in schema:
        case.additional = demand(schema["additionalProperties"])
    members = case.properties
    for name, part in schema.get("properties", _NO_PROPERTIES).items():
        members[name] = demand(part)
    if "required" in schema:
        case.required = _required(schema)
        for name in case.required:
            members.setdefault(name, case.additional)
        never = (schemas.number(False), True)
        if any(never in members[name] for name in case.required):
            return []
    schemas.spend(2 * len(members))
    return [case]


def _required(schema: Mapping[str, Any]) -> dict[str, None]:
    required = schema["required"]
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise InvalidRequestError("required must be a list of names", PARAM)
    return dict.fromkeys(required)


def merge_objects(
    schemas: Schemas, case: Case, numbers: list[int], cases_of: Callable[[Conjunction], list[Case]]
) -> None:
    parts = [schemas[number] for number in numbers]
    names: dict[str, Any] = {}
    for schema in parts:
        for keyword in ("minProperties", "maxProperties"):
            if keyword in schema:
                case.tighten(keyword, schema[keyword])
        if "required" in schema:
            case.required |= _required(schema)
        names.update(schema.get("properties", ()))
    names.update(case.properties)
    names.update(case.required)
    patterned = [s for s in parts if s.get("patternProperties")]
    schemas.spend(len(names) * (1 + len(parts) + 8 * len(patterned)))
    members = case.properties
    for name in names:
        members.setdefault(name, _NOTHING)
    for schema in parts:  # a member obeys what each schema says of its name
        if not _OF_MEMBERS.isdisjoint(schema):
            _demand_of_members(schemas, schema, members)
    for schema in parts:
        case.additional |= _rest(schemas, schema)
    if patterned:
        case.patterns |= _patterns(schemas, parts, patterned)
    called = [schemas.demand(s["propertyNames"]) for s in parts if "propertyNames" in s]
    if any(called):
        _limit_names(schemas, case, frozenset[tuple[int, bool]]().union(*called), cases_of)


def _demand_of_members(schemas: Schemas, schema: Mapping[str, Any], members: dict[str, Conjunction]) -> None:
    """Add what one subschema demands of each."""
    named = schema.get("properties", _NO_PROPERTIES)
    rest = _NOTHING
    if not _OF_OTHERS.isdisjoint(schema):
        if schema.keys() & _OF_OTHERS != _REST:
            for name, known in members.items():
                members[name] = known | _member(schemas, schema, name)
            return
        rest = schemas.demand(schema["additionalProperties"])
    for name in members if rest else named:  # as it mostly says nothing of names that it has not
        demand = schemas.demand(named[name]) if name in named else rest
        if demand:
            known = members[name]
            members[name] = known | demand if known else demand


def _patterns(
    schemas: Schemas, parts: list[Mapping[str, Any]], patterned: list[Mapping[str, Any]]
) -> dict[str, Conjunction]:
    """What properties must be whose names match a pattern, each name one pattern at most."""
    given = list(dict.fromkeys(pattern for schema in patterned for pattern in schema["patternProperties"]))
    apart = {pattern: frozenset([pattern]) for pattern in given}
    if len(patterned) > 1 or overlap(given):
        schemas.spend(100 * len(given) ** 2)
        try:
            apart = regions(given)
        except (UnreadableError, RecursionError):
            if len(patterned) > 1:
                raise UnsupportedError(
                    "JSON schema: such patternProperties of two merged schemas are not supported", PARAM
                ) from None
    found: dict[str, Conjunction] = {}
    for expression, matched in apart.items():
        demands: Conjunction = frozenset()
        for schema in parts:
            own = schema.get("patternProperties", {})
            if of_it := [part for pattern, part in own.items() if pattern in matched]:
                demands = demands.union(*(schemas.demand(part) for part in of_it))
            else:  # to this one such a name is one of the rest
                pattern = next(iter(matched)) if len(matched) == 1 else None
                demands |= _rest(schemas, schema, pattern=pattern)
        found[expression] = demands
    return found


def _limit_names(
    schemas: Schemas, case: Case, wanted: Conjunction, cases_of: Callable[[Conjunction], list[Case]]
) -> None:
    """propertyNames: what is not named may only be called so; what may not be is impossible."""
    never = frozenset({(schemas.number(False), True)})
    for name in case.properties:
        if not all(satisfies(schemas, name, number) for number, _ in wanted):
            case.properties[name] = never
    rest, case.additional = case.additional, never
    given, case.patterns = case.patterns, {}
    for names in cases_of(wanted):
        if names.values is not None:
            for name in names.values:
                if isinstance(name, str):
                    schemas.spend(8 * len(given))
                    matched = [part for pattern, part in given.items() if matches_pattern(pattern, name)]
                    case.properties.setdefault(name, frozenset[tuple[int, bool]]().union(*matched or [rest]))
        elif names.type == "string" and names.is_free:
            case.additional = rest
            case.patterns |= given
        elif names.type == "string" and (called := _expression(names)) is not None:
            case.patterns |= _both(called, given, rest)


def _both(called: str, given: dict[str, Conjunction], rest: Conjunction) -> dict[str, Conjunction]:
    """What properties must be that are called so: those that a pattern of `given` names, and the rest."""
    if not given:
        return {called: rest}
    found: dict[str, Conjunction] = {}
    try:
        for pattern, part in given.items():
            if (both := meet((called, pattern))) is not None:
                found[both] = part
        if (others := meet((called,), tuple(given))) is not None:
            found[others] = rest
    except UnreadableError:
        raise UnsupportedError(
            "JSON schema keyword 'propertyNames' beside such 'patternProperties' is not supported", PARAM
        ) from None
    return found


def _expression(names: Case) -> str | None:
    """A regular expression of the strings of a case; None: there are none."""
    bounds = names.bounds
    if set(bounds) == {"pattern"} and not names.expressions:
        return str(bounds["pattern"])
    if not bounds and len(names.expressions) == 1:
        return names.expressions[0]
    least, most = bounds.get("minLength", 0), bounds.get("maxLength", "")
    sizes = rf"^[\s\S]{{{least},{most}}}$"
    expressions = [*([bounds["pattern"]] if "pattern" in bounds else ()), *names.expressions]
    if expressions and "format" not in bounds:
        with suppress(UnreadableError, RecursionError):
            return meet((*expressions, *([sizes] if bounds.keys() - {"pattern"} else ())))
    if expressions or "format" in bounds or max(least, most or 0) > _MAX_NAME:
        words = [*bounds, *["pattern"][: len(names.expressions)]]
        raise UnsupportedError(
            f"JSON schema keyword 'propertyNames' with {' and '.join(words)} is not supported", PARAM
        )
    return sizes


def _member(schemas: Schemas, schema: Any, name: str) -> Conjunction:
    """What one subschema demands of the property of this name."""
    named = schema.get("properties", _NO_PROPERTIES)
    known = name in named
    found: Conjunction = schemas.demand(named[name]) if known else frozenset()
    for pattern, part in schema.get("patternProperties", _NO_PROPERTIES).items():
        if matches_pattern(pattern, name):
            known = True
            found |= schemas.demand(part)
    return found if known else _rest(schemas, schema, name)


def _rest(schemas: Schemas, schema: Any, name: str | None = None, pattern: str | None = None) -> Conjunction:
    """What one subschema demands of properties that it does not name.

    Args:
        name, pattern: of this one, or of those that match; without both, of those that no subschema names.
    """
    if "additionalProperties" in schema:
        return schemas.demand(schema["additionalProperties"])
    if "unevaluatedProperties" in schema:
        left = schemas.demand(schema["unevaluatedProperties"])
        if not left:
            return left
        others = _beside(schemas, schemas.number(schema), "unevaluatedProperties")
        return frozenset() if any(_evaluates(other, name, pattern) for other in others) else left
    return frozenset()


def _evaluates(schema: Mapping[str, Any], name: str | None, pattern: str | None) -> bool:
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return True
    patterns = schema.get("patternProperties", {})
    if pattern is not None and pattern in patterns:
        return True
    return name is not None and (
        name in schema.get("properties", {}) or any(matches_pattern(p, name) for p in patterns)
    )
