"""minProperties and maxProperties beside properties that may be left out: jsonschema is the judge."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import re
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.structured import ConstraintCompiler
from octavo.structured.schema import written
from support.grammars import ByteTokenizer, compiled, reachable

pytestmark = pytest.mark.usefixtures("no_clock")

jsonschema: Any = importlib.import_module("jsonschema")
INTEGER = {"type": "integer"}
PROPERTIES: list[dict[str, Any]] = [{"a": INTEGER}, {"a": INTEGER, "b": {}, "c": INTEGER, "d": False}]
BOUNDS: list[dict[str, int]] = [
    {"minProperties": 1}, {"minProperties": 2}, {"maxProperties": 0}, {"maxProperties": 1},
    {"maxProperties": 2},
    {"minProperties": 1, "maxProperties": 1}, {"minProperties": 2, "maxProperties": 3},
]  # fmt: skip


@pytest.fixture(scope="module")
def make() -> ConstraintCompiler:
    return ConstraintCompiler(ByteTokenizer())


def values() -> list[dict[str, Any]]:
    """Objects of up to three properties, each one right and one wrong in turn."""
    found: list[dict[str, Any]] = []
    for size in range(4):
        for names in itertools.combinations("abcdx", size):
            found.append(dict.fromkeys(names, 1))
            found.append({name: "s" if at == 0 else 1 for at, name in enumerate(names)})
    return found


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("rest", [True, False, INTEGER], ids=str)
def test_what_can_be_written_is_what_is_valid(make: ConstraintCompiler, bounds: Any, rest: Any) -> None:
    for properties, required in itertools.product(PROPERTIES, ([], ["a"])):
        schema = {
            "type": "object", "properties": properties, "required": required, "additionalProperties": rest,
            **bounds,
        }  # fmt: skip
        judge = jsonschema.Draft202012Validator(schema)
        valid = [value for value in values() if judge.is_valid(value)]
        constraint = None
        with contextlib.suppress(InvalidRequestError):  # nothing can satisfy it
            constraint = compiled(make, json=schema)
        written = [value for value in values() if constraint is not None and reachable(constraint, value)]
        assert written == valid


PATTERNS: list[dict[str, Any]] = [{"^x": INTEGER}, {"^[xy]": INTEGER, "^z": {}}, {"^[a-d]": INTEGER}]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("patterns", PATTERNS, ids=str)
def test_names_of_patterns_are_counted(make: ConstraintCompiler, bounds: Any, patterns: Any) -> None:
    for properties, required, rest in itertools.product(PROPERTIES, ([], ["a"]), (False, True, INTEGER)):
        schema = {
            "type": "object", "properties": properties, "required": required, "patternProperties": patterns,
            "additionalProperties": rest, **bounds,
        }  # fmt: skip
        judge = jsonschema.Draft202012Validator(schema)
        valid = [value for value in values() if judge.is_valid(value)]
        overlap = any(re.search(pattern, name) for pattern in patterns for name in properties)
        if not valid or overlap:
            continue  # nothing satisfies it, or names that are named and match a pattern: it may be refused
        constraint = compiled(make, json=schema)
        assert [value for value in values() if reachable(constraint, value)] == valid


def test_one_of_many_properties_is_chosen(make: ConstraintCompiler) -> None:
    many = {"type": "object", "properties": {f"p{at}": INTEGER for at in range(150)}, "maxProperties": 1}
    constraint = compiled(make, json=many)
    assert [reachable(constraint, value) for value in ({}, {"p149": 1}, {"q": 1})] == [True] * 3
    assert not any(
        reachable(constraint, value) for value in ({"p149": "s"}, {"p1": 1, "p2": 1}, {"p1": 1, "q": 1})
    )


@pytest.mark.parametrize("rest", [True, False])
def test_members_of_several_alternatives_are_written_once(rest: bool) -> None:
    part = {"type": "string", "pattern": "^lengthy expression$"}
    names = [f"p{at}" for at in range(12)]
    schema = {
        "type": "object", "properties": {name: {"not": part} if name == "p0" else part for name in names},
        "additionalProperties": rest, "minProperties": 1,
    }  # fmt: skip
    assert json.dumps(written(schema).schema).count("lengthy") <= 2


@pytest.mark.parametrize("rest", [True, False])
def test_one_of_many_properties_is_there(make: ConstraintCompiler, rest: bool) -> None:
    many = {
        "type": "object", "properties": {f"p{at}": INTEGER for at in range(100)}, "minProperties": 1,
        "additionalProperties": rest,
    }  # fmt: skip
    constraint = compiled(make, json=many)
    assert all(reachable(constraint, value) for value in ({"p99": 1}, {"p1": 1, "p2": 1}))
    assert not any(reachable(constraint, value) for value in ({}, {"p99": "s"}, {"p1": 1, "p2": "s"}))
    assert reachable(constraint, {"p7": 1, "q": 1}) is reachable(constraint, {"q": 1}) is rest


def test_too_many_choices_are_refused_by_name(make: ConstraintCompiler) -> None:
    many = {"type": "object", "properties": {str(at): {} for at in range(20)}, "maxProperties": 5}
    with pytest.raises(InvalidRequestError, match="maxProperties"):
        compiled(make, json=many)


@pytest.mark.parametrize(("rest", "says"), [(True, "minProperties|min/max"), (False, "than 65,000 rules$")])
def test_too_many_that_may_be_the_first_are_refused(make: ConstraintCompiler, rest: bool, says: str) -> None:
    many = {
        "type": "object", "properties": {str(at): {} for at in range(200)}, "minProperties": 1,
        "additionalProperties": rest,
    }  # fmt: skip
    with pytest.raises(InvalidRequestError, match=says):
        compiled(make, json=many)
