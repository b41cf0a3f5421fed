"""Schemas as the world writes them: older drafts, words that nobody knows. jsonschema is the judge."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.structured import ConstraintCompiler
from octavo.structured.schema import written
from support.grammars import ByteTokenizer, accepts, compiled, reachable

pytestmark = pytest.mark.usefixtures("no_clock")

DRAFTS: dict[str, type[Any]] = {
    "http://json-schema.org/draft-04/schema#": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-06/schema#": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
D4, D6, D7, D2019, D2020 = DRAFTS


@pytest.fixture(scope="module")
def make() -> ConstraintCompiler:
    return ConstraintCompiler(ByteTokenizer())


@pytest.mark.parametrize(
    "words",
    [
        {"x-order": 1, "_format": "x", "markdownDescription": "*", "self": {"vendor": "a"}, "name": "n"},
        {"id": "a", "example": 5, "links": [{"rel": "self"}], "readonly": True, "version": {"type": "null"}},
        {"wat": {"$ref": "nowhere", "type": "robot"}, "nullable": True, "minlength": 9, "items2": []},
        {"format": "int32"},
        {"format": "made-up"},
        {"description": 5, "default": "no number", "title": [], "$vocabulary": {}, "$recursiveRef": "#x"},
    ],
)
def test_words_that_no_draft_knows_constrain_nothing(words: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}, "required": ["a"]}
    inner = {**schema, "properties": {"a": {**words, **schema["properties"]["a"]}}}  # type: ignore[dict-item, index]
    assert written({**words, **schema}) == written(schema) == written(inner)


def test_a_known_format_still_constrains(make: ConstraintCompiler) -> None:
    constraint = compiled(make, json={"type": "string", "format": "ipv4", "_format": "uuid"})
    assert accepts(constraint, '"10.0.0.1"')
    assert not accepts(constraint, '"10.0.0."')


NAMED = {
    "definitions": {"__comment": "no schema", "group": {"short": {"type": "string", "maxLength": 1}}},
    "components": {"list": {"items": {"$ref": "#/components/number"}}, "number": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"$schema": D4, "minimum": 3, "exclusiveMinimum": True, "type": "number"}, ["4"], ["3", "2"]),
        ({"$schema": D4, "maximum": 3, "exclusiveMaximum": False, "type": "number"}, ["3"], ["4"]),
        ({"maximum": 3, "exclusiveMaximum": True, "type": "number"}, ["2"], ["3"]),
        ({"exclusiveMinimum": True, "type": "integer"}, ["0", "-1"], ["true"]),
        (
            {"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "integer"}},
            ["[]", "[null]", "[null, 1]"],
            ["[1]", "[null, null]"],
        ),
        ({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, ["[null]"], ["[null,1]"]),
        ({"type": "array", "items": [], "additionalItems": {"const": 1}}, ["[]", "[1]"], ["[2]"]),
        ({"type": "array", "items": {"const": 1}, "additionalItems": False}, ["[1, 1]"], ["[2]"]),
        (
            {"type": "object", "dependencies": {"a": ["b"], "c": {"properties": {"b": {"const": 1}}}}},
            ["{}", '{"a": 0, "b": 2}', '{"c": 0, "b": 1}', '{"c": 0}'],
            ['{"a": 0}', '{"c": 0, "b": 2}'],
        ),
        (
            {
                "$schema": D4,
                "id": "http://x/a",
                "$ref": "#n",
                "definitions": {"n": {"id": "#n", "enum": [1]}},
            },
            ["1"],
            ["2"],
        ),
        (
            {
                "$schema": D7,
                "$id": "http://x/a",
                "$ref": "b",
                "definitions": {"n": {"$id": "b", "enum": [1]}},
            },
            ["1"],
            ["2"],
        ),
        ({"$ref": "#/definitions/group/short", **NAMED}, ['"a"'], ['"ab"', "1"]),
        ({"type": "array", "$ref": "#/components/list", **NAMED}, ["[1, 2]"], ["[null]"]),
    ],
)
def test_older_drafts_are_understood(
    make: ConstraintCompiler, schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    constraint = compiled(make, json=schema)
    assert [text for text in right if not reachable(constraint, json.loads(text))] == []
    assert [text for text in wrong if reachable(constraint, json.loads(text))] == []


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$schema": "http://json-schema.org/draft-03/schema", "extends": {}}, "'extends'"),
        ({"$schema": D2019, "$recursiveRef": "#"}, r"'\$recursiveRef'"),
        ({"$schema": D7, "prefixItems": [{}], "items": False}, "'prefixItems' beside 'items'"),
        ({"prefixItems": [{}], "items": [{}]}, "'prefixItems' beside 'items'"),
        ({"dependencies": []}, "dependencies must be an object"),
        ({"dependencies": {"a": ["b"]}, "dependentRequired": {"b": ["a"]}}, "'dependencies' beside"),
        ({"$schema": "http://json-schema.org/draft-02/schema"}, "dialect"),
        ({"$ref": "#/definitions/__comment", **NAMED}, "does not point into"),
        ({"$schema": D6, "contains": {"const": 1}, "minContains": 2}, "'contains'"),
    ],
)
def test_known_words_that_cannot_be_kept_are_refused_by_name(schema: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedError), match=says):
        written(schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$schema": D4, "not": {"const": 1}}, "1"),
        ({"$schema": D4, "not": {"const": True, "type": "boolean"}}, "false"),
        ({"$schema": D4, "oneOf": [{"const": 1}, {"const": 2}]}, "1"),
        ({"$schema": D4, "enum": [1, 2], "oneOf": [{"const": 1}, {"const": 2}]}, "1"),
        ({"$schema": D4, "enum": [1, 2], "not": {"const": 1}}, "2"),
        ({"$schema": D4, "enum": [1, 2], "allOf": [{"const": 1}]}, "2"),
        ({"$schema": D4, "enum": [1.0, 1.5], "type": "integer"}, "1.0"),
        (
            {"$schema": D7, "definitions": {"n": {"type": "integer"}}, "type": "number",
             "not": {"$ref": "#/definitions/n", "maximum": 5}},
            "7",
        ),
        ({"$schema": D2020, "not": {"dependencies": {"a": ["b"]}}}, '{"a": 1}'),
        ({"type": "object", "not": {"dependencies": {"a": ["b"]}}}, '{"a": 1}'),
    ],
)  # fmt: skip
def test_nothing_is_concluded_from_words_of_other_drafts(
    make: ConstraintCompiler, schema: dict[str, Any], text: str
) -> None:
    """What the author meant and what the draft says differ: neither is weakened."""
    try:
        constraint = compiled(make, json=schema)
    except (InvalidRequestError, UnsupportedError):
        return
    assert not accepts(constraint, text)


def a_schema(draw: random.Random, uri: str, depth: int, refs: bool = True) -> Any:
    """A schema of a draft, with a word of another draft here and there."""
    if depth == 0:
        return draw.choice([{"type": "integer"}, {"type": "string"}, {"enum": [1, "a", None]}, {}])

    def sub() -> Any:
        return a_schema(draw, uri, depth - 1, refs)

    old = uri != D2020
    makers: dict[str, Any] = {
        "minimum": lambda: draw.choice([0, 1]),
        "exclusiveMinimum": lambda: draw.choice([True, False]) if uri == D4 else 1,
        "maxLength": lambda: 1,
        "type": lambda: draw.choice(["integer", "number", "string", "array", "object", ["null", "array"]]),
        "items": lambda: [sub(), sub()] if old and draw.random() < 0.7 else sub(),
        "additionalItems": lambda: draw.choice([False, sub()]),
        "maxItems": lambda: draw.choice([1, 2]),
        "properties": lambda: {"a": sub(), "b": sub()},
        "required": lambda: draw.choice([["a"], ["b"]]),
        "additionalProperties": lambda: draw.choice([False, sub()]),
        "dependencies": lambda: {"a": draw.choice([["b"], sub()])},
        "const": lambda: draw.choice([1, "a", 1.0]),
        "enum": lambda: draw.sample([1, "a", 1.0, 2, None, [1], {"a": 1}, {"a": 1, "b": 1}], 5),
        "$ref": lambda: draw.choice(["#/definitions/one", "#/definitions/two"]),
        "not": sub,
        "oneOf": lambda: [sub(), sub()],
        "anyOf": lambda: [sub(), sub()],
        "if": sub,
        "then": sub,
        "x-note": lambda: {"type": "robot"},
    }
    if not refs:
        del makers["$ref"]
    return {word: makers[word]() for word in draw.sample(sorted(makers), draw.randint(1, 3))}


def a_value(draw: random.Random, depth: int = 2) -> Any:
    kind = draw.randrange(7 if depth else 5)
    if kind == 5:
        return [a_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 6:
        return {name: a_value(draw, depth - 1) for name in draw.sample("abc", draw.randrange(3))}
    return draw.choice([0, 1, 2, 1.5, "", "a", "ab", None, True, False])


@pytest.mark.parametrize("uri", DRAFTS)
def test_no_invalid_instance_of_any_draft_is_an_answer(make: ConstraintCompiler, uri: str) -> None:
    draw = random.Random(uri)
    served = reached = 0
    for _ in range(400):
        schema = a_schema(draw, uri, 3)
        definitions = {name: a_schema(draw, uri, 1, refs=False) for name in ("one", "two")}
        schema = {"$schema": uri, **schema, "definitions": definitions}
        try:
            constraint = compiled(make, json=schema)
        except (InvalidRequestError, UnsupportedError):
            continue
        served += 1
        judge = DRAFTS[uri](schema)
        for value in [a_value(draw) for _ in range(25)]:
            if reachable(constraint, value):
                reached += 1
                assert judge.is_valid(value), json.dumps([schema, value])
    assert served > 120
    assert reached > 700
