"""Python's literals, cut anywhere, as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.tools.literals import written

ODD = st.sampled_from(["'", '"', "\\", "\n", "é\x00"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | ODD
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("'a", '"a'),
        ("'it\\'s \"", '"it\'s \\"'),
        ("'a\\u00f", '"a'),
        ("'a\\", '"a'),
        ("[1, {'a': True, \"b\": Non", '[1, {"a": true, "b"'),
        ("[1, {'a': True, \"b\":", '[1, {"a": true, "b"'),
        ("[1, 2,]", "[1, 2]"),
        ("{'a': null, 'b': -1.5e", '{"a": null, "b": -1.5e'),
        ("{1: 2}", "{"),
        ("{'a', 'b'}", '{"a"'),
        ("{'a': 1: 2}", '{"a": 1'),
        ("[1 2", "[1"),
        ("[1, ~2", "[1"),
        ("(1, 2)", ""),
        ("b'a'", ""),
        ("[1}", "[1"),
        ("1_000", ""),
        ("f(x)", ""),
        ("", ""),
    ],
)
def test_written(text: str, said: str) -> None:
    assert written(text) == said


@settings(max_examples=300)
@given(VALUES)
def test_whole_values_are_their_json(value: Any) -> None:
    assert json.loads(written(repr(value))) == value


@settings(max_examples=300)
@given(VALUES, st.integers(0, 1000))
def test_cut_values_are_the_beginning_of_it(value: Any, cut: int) -> None:
    """Of repr()'s text so much as is known; a word or an escape that is cut is left out."""
    text = repr(value)
    said, whole = written(text[: cut % (len(text) + 1)]), written(text)
    assert whole.startswith(said)
