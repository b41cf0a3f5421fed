"""Nested counted repetitions are multiplied before anything is compiled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams
from octavo.structured.grammar_source import cache_key, grammar_source
from octavo.structured.regex_size import repeats

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("abc", (1, 1)),
        ("a{7}", (7, 1)),
        ("a{2,9}b{3}", (9, 1)),
        ("(a{10}b{20}){5}", (20, 100)),
        ("((a{10}){10}){10}", (10, 1000)),
        ("(a{30}|b)*{7}", (30, 210)),
        ("a{2}{3}", (2, 6)),
        (r"\\{1000}(a{3}){4}", (1000, 12)),
        (r"\{1000}(a{3}){4}", (3, 12)),
        ("[{9}(]{3}", (3, 1)),
        ("(?:a{3,}){4}", (3, 12)),
        ("x{ {,5} }{) {}", (5, 1)),
        ("a{" + "9" * 5000 + "}", (999_999_999, 1)),
        ("(" * 3000 + "a{2}" + ")" * 3000, (2, 1)),
    ],
)
def test_counts(regex: str, expected: tuple[int, int]) -> None:
    assert repeats(regex)[:2] == expected


@pytest.mark.parametrize("regex", ["(a{1000}){1000}", "((a{100}){100}){100}", "a{10000000}"])
def test_what_would_take_minutes_is_refused_at_once(regex: str) -> None:
    for wanted in (
        StructuredOutputsParams(regex=regex),
        StructuredOutputsParams(json={"type": "array", "items": {"type": "string", "pattern": regex}}),
        StructuredOutputsParams(json={"type": "object", "patternProperties": {regex: {}}}),
    ):
        with pytest.raises(InvalidRequestError, match="at most"):
            grammar_source(wanted)


def test_numbers_that_the_library_cannot_read_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"structured_outputs.json"):
        grammar_source(StructuredOutputsParams(json={"type": "integer", "maximum": 10**300}))


MANY = "(a{1000}){1000}"


def test_what_is_no_schema_holds_no_expression() -> None:
    grammar_source(StructuredOutputsParams(json={"type": "object", "examples": [{"pattern": MANY}]}))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/x-parts/a", "x-parts": {"a": {"type": "string", "pattern": MANY}}},
        {"not": {"patternProperties": {MANY: {}}}},
        {"type": "object", "properties": {f"a{at}": {"pattern": f"b{{{50_000 + at}}}"} for at in range(5)}},
        {
            "items": {"pattern": "a{60000}"},
            "$defs": {"b": {"patternProperties": {"b{90000}": {}, "c{90000}": {}}}},
        },
    ],
)
def test_expressions_are_counted_where_a_schema_has_them(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="at most"):
        grammar_source(StructuredOutputsParams(json=schema))


@given(JSON_VALUES)
def test_a_key_is_the_value_as_json(value: object) -> None:
    key = cache_key(StructuredOutputsParams(json={"const": value}))
    assert json.dumps(json.loads(key.partition(":")[2])) == json.dumps({"const": value})


def test_a_key_of_half_a_surrogate_pair_and_of_no_number() -> None:
    for value in ("\ud800", float("nan"), float("inf"), 10**300):
        key = cache_key(StructuredOutputsParams(json={"const": value}))
        assert json.dumps(json.loads(key.partition(":")[2])) == json.dumps({"const": value})
    with pytest.raises(InvalidRequestError, match="plain JSON"):
        cache_key(StructuredOutputsParams(json={"const": object()}))
