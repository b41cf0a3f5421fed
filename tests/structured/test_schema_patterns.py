"""Patterns of names that overlap, and subschemas that say the same. jsonschema is the judge."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from octavo.structured import ConstraintCompiler
from octavo.structured.schema import value, written
from octavo.structured.schema.expressions import meet
from octavo.structured.schema.patterns import apart, overlap, regions, without
from octavo.structured.schema.value import matches_pattern
from support.grammars import ByteTokenizer, compiled, reachable

pytestmark = pytest.mark.usefixtures("no_clock")

TEXTS = ["", "a", "b", "ab", "ba", "abc", "script", "background_script", "x_script", "xab", "cab"]


@pytest.fixture(scope="module")
def make() -> ConstraintCompiler:
    return ConstraintCompiler(ByteTokenizer())


@pytest.mark.parametrize(
    "patterns", [["^a", "b$"], ["^(.*)background_script$", "^(.*)script$", "a"], ["^.*$", "ab"]]
)
def test_each_name_matches_one_region_and_its_patterns(patterns: list[str]) -> None:
    assert overlap(patterns)
    found = regions(patterns)
    for text in TEXTS:
        matched = [held for expression, held in found.items() if matches_pattern(expression, text)]
        expected = frozenset(pattern for pattern in patterns if matches_pattern(pattern, text))
        assert matched == ([expected] if expected else []), text


@pytest.mark.parametrize("pattern", ["^a", "^x-", "^a$", "^ab$", "^script", "^_-9", "", ".*", "^.*", ".*$"])
def test_a_plain_pattern_matches_what_the_expression_does(pattern: str) -> None:
    for text in ["", *TEXTS, "x-", "x-a", "a\n", "\n", "_-9", "aa", "^a", "a$"]:
        assert matches_pattern(pattern, text) is value._matches(pattern, text), text


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("^table ", "^view ", True),
        ("^foreign table ", "^foreign data", True),
        ("^a", "^ab", False),
        ("^ab*$", "^ac", False),
        ("^ab{0,1}$", "^ac", False),
        ("^ab?$", "^a$", False),
        ("^ab|c", "^c", False),
        ("^a(b|c)", "^b", False),  # an alternative anywhere is not looked at
        ("a", "^b", False),
        ("^ab+", "^ac", True),
    ],
)
def test_patterns_with_other_beginnings_are_apart(one: str, other: str, expected: bool) -> None:
    assert apart(one, other) is apart(other, one) is expected
    assert not apart(one, other) or meet((one, other)) is None


def test_names_are_taken_out_of_a_pattern() -> None:
    assert not overlap(["^a$", "^b$"])
    found = without("^a", ["a", "a.b"])
    assert found is not None
    assert [text for text in ("a", "a.b", "axb", "ab", "b") if matches_pattern(found, text)] == ["axb", "ab"]
    assert without("^(a|b)$", ["a", "b"]) is None
    assert without("(?<=bb)a", ["a"]) == "(?<=bb)a"


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}},
         "additionalProperties": False},
        {"patternProperties": {"^a": {"type": "integer"}},
         "allOf": [
             {"patternProperties": {"b$": {"minimum": 3}}, "additionalProperties": {"type": "number"}}]},
        {"properties": {"ab": {"$ref": "#"}}, "patternProperties": {"^a": {"$ref": "#"}},
         "additionalProperties": False, "type": "object"},
    ],
)  # fmt: skip
def test_overlapping_patterns_are_followed_from_both_sides(
    make: ConstraintCompiler, schema: dict[str, Any]
) -> None:
    schema = {"type": "object", **schema}
    constraint, judge = compiled(make, json=schema), jsonschema.Draft202012Validator(schema)
    values: list[Any] = [
        {name: value} for name in ("a", "ab", "b", "c", "cb") for value in (1, 4, 1.5, "x", {})
    ]
    for each in [{}, *values]:
        assert reachable(constraint, each) is judge.is_valid(each), each


def test_subschemas_that_say_the_same_are_written_once() -> None:
    part = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}
    schema = {
        "type": "object",
        "properties": {f"p{at}": {**part, "title": f"number {at}"} for at in range(20)},
    }
    assert len(written(schema).schema["$defs"]) == 2


def test_places_that_come_to_the_same_are_written_once(make: ConstraintCompiler) -> None:
    """Of different subschemas, that lead back to themselves too."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "$ref": "#"}, "b": {"$ref": "#"}, "c": {"allOf": [{"$ref": "#"}, {}]},
            "d": {"type": "string", "pattern": "^lengthy"},
            "e": {"allOf": [{"type": "string"}, {"pattern": "^lengthy"}]},
            "f": {"type": "object", "$ref": "#", "maxProperties": 0},
        },
        "additionalProperties": False,
    }  # fmt: skip
    found = json.dumps(written(schema).schema)
    assert (found.count('"properties"'), found.count("lengthy")) == (2, 1)
    constraint = compiled(make, json=schema)
    for each in ({"a": {"b": {"d": "lengthy"}}}, {"c": {"e": "lengthy."}}, {"f": {}}):
        assert reachable(constraint, each)
    for each in ({"a": {"b": {"d": "short"}}}, {"a": {"g": 1}}, {"b": []}, {"f": {"d": "lengthy"}}):
        assert not reachable(constraint, each)


def test_what_differs_in_a_reference_alone_is_not_the_same(make: ConstraintCompiler) -> None:
    """Equal words that mean different documents."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "https://x/a"}, "b": {"$ref": "https://x/b"}},
        "$defs": {
            name: {"$id": f"https://x/{name}", "type": "object", "properties": {"v": {"$ref": "#/$defs/v"}},
                   "additionalProperties": False, "$defs": {"v": {"type": kind}}}
            for name, kind in (("a", "null"), ("b", "boolean"))
        },
    }  # fmt: skip
    constraint, judge = compiled(make, json=schema), jsonschema.Draft202012Validator(schema)
    for each in ({"a": {"v": None}}, {"b": {"v": True}}, {"a": {"v": True}}, {"b": {"v": None}}):
        assert reachable(constraint, each) is judge.is_valid(each), each


@pytest.mark.parametrize(
    "pattern", [r"^\p{Lu}{2}$", r"^[\p{Lu}]{2}$", r"^\p{Uppercase_Letter}{2}$", r"^\P{Ll}{2}$"]
)
def test_classes_of_unicode_keep_their_braces(make: ConstraintCompiler, pattern: str) -> None:
    constraint = compiled(make, json={"type": "string", "pattern": pattern})
    assert reachable(constraint, "AB")
    assert not reachable(constraint, "ab")
    assert not reachable(constraint, "ABC")
