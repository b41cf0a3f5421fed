"""minProperties and maxProperties beside properties that may be left out: jsonschema is the judge."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.structured import ConstraintCompiler
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


def test_too_many_choices_are_refused_by_name(make: ConstraintCompiler) -> None:
    many = {"type": "object", "properties": {str(at): {} for at in range(20)}, "maxProperties": 5}
    with pytest.raises(InvalidRequestError, match="maxProperties"):
        compiled(make, json=many)
