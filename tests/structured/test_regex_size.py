"""Nested counted repetitions are multiplied before anything is compiled."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams
from octavo.structured.grammar_source import grammar_source
from octavo.structured.regex_size import repeats


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
