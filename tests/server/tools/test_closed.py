"""Objects of tools' parameters take the members that they name; what says otherwise stays."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from octavo.server.tools.closed import closed

A = {"type": "object", "properties": {"a": {"type": "string"}}}
SHUT = {**A, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, SHUT),
        ({"type": "object"}, {"type": "object"}),
        ({**A, "additionalProperties": True}, {**A, "additionalProperties": True}),
        ({**A, "patternProperties": {"^x": True}}, {**A, "patternProperties": {"^x": True}}),
        ({"properties": {"b": A}}, {"properties": {"b": SHUT}, "additionalProperties": False}),
        ({"items": A, "prefixItems": [A]}, {"items": SHUT, "prefixItems": [SHUT]}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"$ref": "#/$defs/A", "$defs": {"A": SHUT}}),
        # objects that several places describe
        ({"allOf": [A, {"properties": {"b": {}}}]}, None),
        ({**A, "anyOf": [{"properties": {"b": {}}}]}, None),
        ({**A, "$ref": "#/$defs/B", "$defs": {"B": {"properties": {"b": {}}}}}, None),
        ({"properties": {"x": {"if": A}}}, None),
        ({"items": True, "properties": {"x": True}},
         {"items": True, "properties": {"x": True}, "additionalProperties": False}),
    ],
)  # fmt: skip
def test_closed(schema: dict[str, Any], expected: dict[str, Any] | None) -> None:
    found = closed(schema)
    assert found == (schema if expected is None else expected)
    jsonschema.Draft202012Validator.check_schema(dict(found))


def test_the_given_schema_is_left_alone() -> None:
    given = {"properties": {"b": dict(A)}}
    closed(given)
    assert given == {"properties": {"b": A}}
