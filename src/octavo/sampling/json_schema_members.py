"""Merging the members of arrays and objects: what several subschemas demand of each place."""

from __future__ import annotations

from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.sampling.json_schema_case import Case, Conjunction
from octavo.sampling.json_schema_refs import PARAM, Schemas
from octavo.sampling.json_schema_value import matches_pattern

_BRANCHES = ("anyOf", "oneOf", "not", "if", "dependentSchemas")


def merge_array(schemas: Schemas, case: Case, number: int) -> None:
    schema, ids = schemas[number], schemas.number
    for keyword in ("minItems", "maxItems"):
        if keyword in schema:
            case.tighten(keyword, schema[keyword])
    if schema.get("uniqueItems") and case.bounds.get("maxItems", 2) > 1:
        raise UnsupportedError("JSON schema keyword 'uniqueItems' is not supported", PARAM)
    _contains(case, schema)
    rest: Conjunction = frozenset()
    if "items" in schema:
        rest = _one(schemas, ids(schema["items"]))
    elif "unevaluatedItems" in schema:
        _refuse_branches(schema, "unevaluatedItems", ("$ref", "allOf", "contains", *_BRANCHES))
        rest = _one(schemas, ids(schema["unevaluatedItems"]))
    own = [_one(schemas, ids(part)) for part in schema.get("prefixItems", ())]
    length = max(len(own), len(case.prefix))
    own += [rest] * (length - len(own))
    case.prefix += [case.items] * (length - len(case.prefix))
    case.prefix = [a | b for a, b in zip(case.prefix, own, strict=True)]
    case.items = case.items | rest


def _contains(case: Case, schema: Any) -> None:
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
    raise UnsupportedError("JSON schema keyword 'contains' is not supported", PARAM)


def _one(schemas: Schemas, number: int) -> Conjunction:
    schema = schemas[number]
    return frozenset() if schema is True or schema == {} else frozenset({(number, True)})


def _refuse_branches(schema: Any, keyword: str, others: tuple[str, ...]) -> None:
    for other in others:
        if other in schema:
            raise UnsupportedError(
                f"JSON schema keyword {keyword!r} beside {other!r} is not supported", PARAM
            )


def merge_objects(schemas: Schemas, case: Case, numbers: list[int]) -> None:
    parts = [schemas[number] for number in numbers]
    for schema in parts:
        for keyword in ("minProperties", "maxProperties"):
            if keyword in schema:
                case.tighten(keyword, schema[keyword])
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(n, str) for n in required):
            raise InvalidRequestError("required must be a list of names", PARAM)
        case.required |= dict.fromkeys(required)
        if (
            "propertyNames" in schema
            and not _one(schemas, schemas.number(schema["propertyNames"])) == frozenset()
        ):
            raise UnsupportedError("JSON schema keyword 'propertyNames' is not supported", PARAM)
    names = dict.fromkeys(n for s in parts for n in s.get("properties", {}))
    names.update(dict.fromkeys(case.properties))
    names.update(case.required)
    patterned = [s for s in parts if s.get("patternProperties")]
    if len(patterned) > 1:
        raise UnsupportedError(
            "JSON schema: patternProperties of two merged schemas are not supported", PARAM
        )
    for name in names:
        own = case.properties.get(name, frozenset())
        case.properties[name] = own.union(*(_member(schemas, schema, name) for schema in parts))
    for schema in parts:
        case.additional |= _rest(schemas, schema)
    for schema in patterned:
        others = frozenset[tuple[int, bool]]().union(*(_rest(schemas, s) for s in parts if s is not schema))
        for pattern, part in schema["patternProperties"].items():
            case.patterns[pattern] = _one(schemas, schemas.number(part)) | others


def _member(schemas: Schemas, schema: Any, name: str) -> Conjunction:
    """What one subschema demands of the property of this name."""
    found: Conjunction = frozenset()
    known = False
    if name in schema.get("properties", {}):
        known = True
        found |= _one(schemas, schemas.number(schema["properties"][name]))
    for pattern, part in schema.get("patternProperties", {}).items():
        if matches_pattern(pattern, name):
            known = True
            found |= _one(schemas, schemas.number(part))
    return found if known else _rest(schemas, schema)


def _rest(schemas: Schemas, schema: Any) -> Conjunction:
    """What one subschema demands of properties that it does not name."""
    if "additionalProperties" in schema:
        return _one(schemas, schemas.number(schema["additionalProperties"]))
    if "unevaluatedProperties" in schema:
        if schema["unevaluatedProperties"] is True:
            return frozenset()
        _refuse_branches(schema, "unevaluatedProperties", ("$ref", "allOf", *_BRANCHES))
        return _one(schemas, schemas.number(schema["unevaluatedProperties"]))
    return frozenset()
