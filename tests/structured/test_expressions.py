"""Expressions without look-ahead, and complements: Python's re, which has look-ahead, is the judge."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.structured import ConstraintCompiler
from octavo.structured.schema import expression_nodes, expression_writer
from octavo.structured.schema.expressions import complement, has_lookahead, without_lookahead
from octavo.structured.schema.value import matches_pattern
from support.grammars import ByteTokenizer, accepts, compiled, reachable

pytestmark = pytest.mark.usefixtures("no_clock")

jsonschema: Any = importlib.import_module("jsonschema")
INTEGER = {"type": "integer"}
ATOMS = st.sampled_from(
    ["a", "b", "ab", ".", "[ab]", "[^a]", r"\d", r"\w", "1", r"\.", "(?:a|b1)", "[a-c1-]"]
)
PARTS = st.builds(
    lambda atom, times: f"(?:{atom}){times}", ATOMS, st.sampled_from(["", "*", "+", "?", "{1,2}"])
)
PLAIN = st.lists(PARTS, min_size=1, max_size=3).map("".join)
AHEAD = st.builds(
    lambda kind, inner, end: f"({kind}{inner}{end})",
    st.sampled_from(["?=", "?!"]),
    PLAIN,
    st.sampled_from(["", "$"]),
)
AROUND = st.sampled_from(["^", r"\b", r"\B", "(?<=a)", "(?<![ab])"])
AROUND_PARTS = st.one_of(PARTS, AROUND, st.builds("(?:{}{}|{})".format, AROUND, PLAIN, PLAIN))
LOOKING = st.builds(
    lambda before, ahead, after, end: f"^{before}{ahead}{after}{end}",
    st.one_of(st.just(""), PLAIN), AHEAD, st.one_of(PLAIN, AHEAD), st.sampled_from(["", "$"]),
)  # fmt: skip
TEXTS = st.text("abc1.\n-é", max_size=5)


def found(pattern: str, text: str) -> bool:
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None


@settings(max_examples=100)
@given(LOOKING, st.lists(TEXTS, min_size=1, max_size=8))
def test_without_lookahead_the_same_is_matched(pattern: str, texts: list[str]) -> None:
    written = without_lookahead(pattern)
    assume(not any(map(has_lookahead, written)))  # it is too large: most are not
    for text in texts:
        matched = bool(written) and all(matches_pattern(each, text) for each in written)
        assert matched == found(pattern, text), (written, text)


@settings(max_examples=100)
@given(
    st.lists(AROUND_PARTS, min_size=1, max_size=4).map("".join),
    st.sampled_from(["", "^", "a|^"]),
    st.sampled_from(["", "$", r"\b"]),
    st.lists(TEXTS.filter(bool), min_size=1, max_size=8),  # re's \B finds nothing in "", ECMA-262's does
)
def test_edges_of_words_are_found_where_they_are(
    before: str, inner: str, after: str, texts: list[str]
) -> None:
    pattern = f"{inner}{before}{after}"
    written = without_lookahead(pattern)
    assume(not any(map(has_lookahead, written)))  # it is too large: most are not
    for text in texts:
        matched = bool(written) and all(matches_pattern(each, text) for each in written)
        assert matched == found(pattern, text), (pattern, written, text)


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("^\\${.*}$", ["${a}", "${}"], ["$a", "{a}"]),
        ("^a{2}{b}{,1x}$", ["aa{b}{,1x}"], ["a{b}", "aab"]),
        ("^[{}]{1,2}$", ["{", "}}"], ["a", "{{{"]),
    ],
)
def test_braces_that_count_nothing_are_characters(pattern: str, right: list[str], wrong: list[str]) -> None:
    constraint = compiled(ConstraintCompiler(ByteTokenizer()), json={"type": "string", "pattern": pattern})
    assert [text for text in right if not accepts(constraint, f'"{text}"')] == []
    assert [text for text in wrong if accepts(constraint, f'"{text}"')] == []


def test_a_high_count_before_an_edge_is_written_as_it_is() -> None:
    pattern = r"^[a-z.]{1,200}\.[a-z-]{2,6}\b(?!x)[-x/]*$"
    (written,) = without_lookahead(pattern)
    assert not has_lookahead(written)
    for text in ["a.bc", "a.bc/", "a.b", "a.bcx", "a.b-c", "a.b--", f"{'a' * 200}.bc", f"{'a' * 201}.bc"]:
        assert matches_pattern(written, text) == found(pattern, text), text


def test_no_string_matches_what_begins_twice() -> None:
    schema = {"anyOf": [{"type": "string", "pattern": "^a\\s*^b$"}, {"type": "integer"}]}
    constraint = compiled(ConstraintCompiler(ByteTokenizer()), json=schema)
    assert accepts(constraint, "1")
    assert not accepts(constraint, '"a')
    negated = compiled(ConstraintCompiler(ByteTokenizer()), json={"type": "string", "not": schema})
    assert accepts(negated, '"a"')
    assert accepts(negated, '"ab"')


@settings(max_examples=100)
@given(st.one_of(PLAIN, PLAIN.map("^{}$".format)), st.lists(TEXTS, min_size=1, max_size=8))
def test_a_complement_is_matched_by_the_others(pattern: str, texts: list[str]) -> None:
    written = complement(pattern)
    for text in texts:
        matched = written is not None and matches_pattern(written, text)
        assert matched != found(pattern, text), (written, text)


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("^((?!error|warn).)*$", ["", "fine", "war", "err or"], ["an error", "warn", "a\nb"]),
        ("^(?!(?:true|false)$)[a-z]+$", ["truely", "fals", "x"], ["true", "false", "", "A"]),
        (r"^(?!.*--)[a-z-]{1,9}$", ["a-b", "-"], ["a--b", "--", ""]),
        ("^(?!-)[-a-z0-9]{0,49}[a-z0-9]$", ["a-b", "a" * 50], ["-a", "a-", "a" * 51, ""]),
        (r"^(?!a)|b$", ["b", "c", "ab"], ["a", "abc"]),
        (r"\ba(?=b)", ["ab", "x ab", "-abc"], ["xab", "a b", ""]),
        (r"\b[0-9]{3}\b", ["123", "a 123-", "12 345"], ["1234", "a123", ""]),
        (r"^(?:^[a-z]+:)?\S*$", ["a:b", ":", "x"], ["a b"]),
        (r"^(?=[^!]+$)(?=.*\d).+$", ["a1", "1"], ["a", "1!", ""]),
    ],
)  # fmt: skip
def test_as_schemas_write_them(pattern: str, right: list[str], wrong: list[str]) -> None:
    constraint = compiled(ConstraintCompiler(ByteTokenizer()), json={"type": "string", "pattern": pattern})
    assert [text for text in right if not accepts(constraint, f'"{text}"')] == []
    assert [text for text in wrong if "\n" not in text and accepts(constraint, f'"{text}"')] == []


TEXT = {"type": "string"}
NAMES: list[dict[str, Any]] = [
    {"propertyNames": {"pattern": "^a"}, "patternProperties": {"b$": INTEGER}, "additionalProperties": TEXT},
    {"propertyNames": {"maxLength": 2}, "patternProperties": {"^x": TEXT}, "additionalProperties": INTEGER},
    {"propertyNames": {"enum": ["a", "x", "xa"]}, "patternProperties": {"^x": TEXT},
     "additionalProperties": INTEGER},
    {"propertyNames": {"pattern": "^a"}, "patternProperties": {"^x": TEXT}},
    {"propertyNames": {"pattern": "^[ax]", "maxLength": 2, "minLength": 2}, "additionalProperties": INTEGER},
    {"propertyNames": {"pattern": "^a", "allOf": [{"pattern": "b"}, {"maxLength": 2}]}},
    {"propertyNames": {"pattern": "^a$", "minLength": 2}},
    {"propertyNames": {"minLength": 1}, "patternProperties": {"^x": TEXT}, "additionalProperties": False},
]  # fmt: skip


@pytest.mark.parametrize("schema", NAMES, ids=str)
def test_names_that_are_held_to_two_expressions(schema: dict[str, Any]) -> None:
    schema = {"type": "object", **schema}
    judge, constraint = (
        jsonschema.Draft202012Validator(schema),
        compiled(ConstraintCompiler(ByteTokenizer()), json=schema),
    )
    values = [{name: value} for name in ("", "a", "ab", "x", "xa", "b", "abc", "xx") for value in (1, "s")]
    values += [{"a": 1, "x": "s"}, {"xa": "s", "b": 1}]
    assert [v for v in values if reachable(constraint, v)] == [v for v in values if judge.is_valid(v)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<=ab)b",
        r"(a)\1",
        r"^(?:a(?!b)|b)+$",
        "^a(?=b",
        "(?i)a(?=b)",
        "a" * 3000 + "(?!b)",
    ],
)
def test_what_cannot_be_read_is_left_alone(pattern: str) -> None:
    assert without_lookahead(pattern) == (pattern,)


@pytest.mark.parametrize(
    "pattern", ["^(?!(a|b){60}c)(?:a|b|c){60}$", "(a|b)*a(a|b){12}", "^(?!(x{60}){60})y$"]
)
def test_large_automata_are_given_up(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    derive = expression_nodes.derivative

    def counted(*given: object) -> object:
        nonlocal steps
        steps += 1
        return derive(*given)  # type: ignore[arg-type]

    for module in (expression_nodes, expression_writer):
        monkeypatch.setattr(module, "derivative", counted)
    without_lookahead.cache_clear()
    complement.cache_clear()
    without_lookahead(pattern)
    complement(pattern)
    assert steps < 3_000_000
