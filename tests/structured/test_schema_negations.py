"""What must not hold: `not`, oneOf, and keywords that are violated. jsonschema is the judge."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import jsonschema
import pytest

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.structured import ConstraintCompiler
from octavo.structured.schema import cases, written
from octavo.structured.schema.cases import Cases
from octavo.structured.schema.negated import all_but
from octavo.structured.schema.value import matches_pattern
from support.grammars import ByteTokenizer, accepts, compiled, reachable

pytestmark = pytest.mark.usefixtures("no_clock")

CLOSED = {"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}, "additionalProperties": False}
KINDS = [
    {"type": "object", "properties": {"kind": {"const": kind}, kind: {}}, "required": ["kind"]}
    for kind in ("x", "y")
]


@pytest.fixture(scope="module")
def make() -> ConstraintCompiler:
    return ConstraintCompiler(ByteTokenizer())


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "object", "not": {"required": ["a", "b"]}}, ['{"a": 1}', "{}"], ['{"a": 1, "b": 1}']),
        (
            {"type": "object", "not": {"properties": {"a": {"const": 1}, "b": {"const": 2}}}},
            ['{"a": 2}', '{"a": 1, "b": 1}'],
            ["{}", '{"a": 1, "b": 2}', '{"c": 0}'],
        ),
        ({"type": "string", "not": {"enum": ["", "a", "b-"]}}, ['"b"', '"ab"'], ['""', '"a"', '"b-"']),
        ({"type": "string", "maxLength": 2, "not": {"const": "ab"}}, ['"a"', '"ba"'], ['"ab"', '"abc"']),
        ({"type": "integer", "minimum": 0, "not": {"enum": [0, 2, "a"]}}, ["1", "3"], ["0", "2", "-1"]),
        ({"type": "number", "not": {"const": 1.5}}, ["1", "1.25", "1.55"], ["1.5", "1.50", "15e-1"]),
        ({"type": ["array", "object"], "not": {"enum": [[], {}]}}, ["[1]", '{"a": 1}'], ["[]", "{}"]),
        (
            {"oneOf": [{"required": ["a"], "properties": {"a": {"const": kind}}} for kind in (1, 2)]},
            ['{"a": 1}', '{"a": 2}'],
            ["null", "1", "[]", '"a"', "{}", '{"a": 3}'],
        ),
        (
            {"allOf": [{"required": ["a"]}, {"not": {"required": ["b"]}}, {"anyOf": [
                {"properties": {"a": {"enum": [1, 2]}}}, {"not": {"required": ["a"]}}]}]},
            ['{"a": 1}'],
            ["null", '{"a": 1, "b": 2}', '{"a": 3}', "{}"],
        ),
        (
            {"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 1}}},
                       {"anyOf": [{"properties": {"a": {"const": other}}} for other in (2, 3)]}]},
            ["null", "1", "[]"],
            ["{}", '{"a": 1}', '{"a": 2}'],
        ),
        ({"oneOf": KINDS}, ['{"kind": "x"}', '{"kind": "y", "x": 1}'], ['{"kind": "z"}', "{}"]),
        (
            {"oneOf": [{"type": "string"}, {"enum": ["a", 5]}]},
            ['"b"', "5"],
            ['"a"', "6"],
        ),
        (
            {"oneOf": [CLOSED, {"type": "object", "properties": {"a": {}}, "additionalProperties": False}]},
            ['{"b": 1}', '{"a": 0, "b": 1}'],
            ["{}", '{"a": 1}', '{"b": "c"}', '{"c": 1}'],
        ),
        (
            {"type": "array", "oneOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]},
            ['["a"]', "[null, null]"],
            ["[]", '["a", null]', "[1]"],
        ),
        (
            {"type": "array", "maxItems": 2, "not": {"items": {"const": 1}}},
            ["[2]", "[1, 2]", "[2, 1]"],
            ["[]", "[1]", "[1, 1]", "[2, 2, 2]"],
        ),
        (
            {"type": "array", "not": {"prefixItems": [{"const": 1}, {"const": 2}]}},
            ["[2]", "[1, 1]", "[2, 2, 3]"],
            ["[]", "[1]", "[1, 2]", "[1, 2, 3]"],
        ),
        ({"type": "array", "not": {"contains": {"const": 1}}}, ["[]", "[2]"], ["[1]", "[2, 1]"]),
        (
            {**CLOSED, "not": {"propertyNames": {"enum": ["b"]}}},
            ['{"a": 1}', '{"a": 1, "b": 2}'],
            ["{}", '{"b": 2}'],
        ),
        (
            {**CLOSED, "not": {"patternProperties": {"^b$": {"minimum": 3}}}},
            ['{"b": 2}'],
            ["{}", '{"b": 3}', '{"a": 1}'],
        ),
        (
            {"type": "object", "not": {"dependentRequired": {"a": ["b", "c"]}}},
            ['{"a": 1}', '{"a": 1, "b": 1}'],
            ["{}", '{"a": 1, "b": 1, "c": 1}'],
        ),
        (
            {"type": "object", "not": {"dependentSchemas": {"a": {"minProperties": 2}}}},
            ['{"a": 1}'],
            ["{}", '{"b": 1}', '{"a": 1, "b": 1}'],
        ),
        (
            {"enum": [1, 2, 3], "not": {"oneOf": [{"minimum": 2}, {"maximum": 2}]}},
            ["2"],
            ["1", "3"],
        ),
        (
            {"type": "integer", "not": {"oneOf": [{"minimum": 2}, {"maximum": 5}, {"const": 9}]}},
            ["2", "5", "9"],
            ["1", "6", "8"],
        ),
        (
            {"type": "string", "pattern": "^a", "allOf": [{"pattern": "b$"}, {"pattern": "-"}]},
            ['"a-b"', '"ab-b"'],
            ['"ab"', '"a-"', '"-b"'],
        ),
        (
            {"$ref": "#/$defs/t", "$defs": {"t": {"oneOf": [
                {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}, "required": ["t"]},
                {"type": "object", "properties": {"t": {"type": "null"}}, "required": ["t"]},
            ]}}},
            ['{"t": null}', '{"t": {"t": null}}'],
            ['{"t": 1}', "{}", '{"t": {}}'],
        ),
    ],
)  # fmt: skip
def test_what_must_not_hold_is_worked_out(
    make: ConstraintCompiler, schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    constraint = compiled(make, json=schema)
    judge = jsonschema.Draft202012Validator(schema)
    for text in (*right, *wrong):
        value = json.loads(text)
        assert judge.is_valid(value) is (text in right), text
        assert reachable(constraint, value) is (text in right), text


BY_A, BY_B = (
    {"type": "object", "patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    for pattern in ("^a", "b$")
)


def check_written(
    make: ConstraintCompiler, schema: dict[str, Any], right: list[Any], missed: list[Any], wrong: list[Any]
) -> None:
    """Of these values those that are right can be written, and no others: missed ones are valid, too."""
    constraint = compiled(make, json=schema)
    judge = jsonschema.Draft202012Validator(schema)
    assert all(map(judge.is_valid, (*right, *missed)))
    assert not any(map(judge.is_valid, wrong))
    assert [value for value in (*right, *missed, *wrong) if reachable(constraint, value)] == right
    assert bool(written(schema).narrow) or not missed


@pytest.mark.parametrize(
    ("schema", "right", "missed", "wrong"),
    [
        (
            {"type": "object", "not": {"additionalProperties": {"type": "null"}}},
            [{"a": 1}, {"a": 1, "b": "c"}],
            [{"a": 1, "b": None}],
            [{}, {"a": None}],
        ),
        ({"type": "object", "not": {"additionalProperties": False}}, [{"a": 1}, {"a": 1, "b": 2}], [], [{}]),
        (
            {**BY_A, "not": BY_B},
            [{"a": 1}, {"ac": 1, "a": 2}],
            [{"a": 1, "ab": 1}],
            [{}, {"ab": 1}, {"b": 1}, {"a": "x"}],
        ),
        (
            {"type": "object", "oneOf": [BY_A, BY_B]},
            [{"a": 1}, {"b": 1, "cb": 2}],
            [{"a": 1, "ab": 1}, {"b": 1, "ab": 2}],
            [{}, {"ab": 1}, {"a": 1, "b": 1}, {"c": 1}],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "c": {}}, "required": ["a"],
             "not": {"patternProperties": {"^x": {"type": "integer"}}, "properties": {"xb": {}}}},
            [{"a": 1, "x": "s"}, {"a": 1, "xb": "s"}, {"a": 2, "xc": None, "x": "t"}],
            [{"a": 1, "x": "s", "y": 1}, {"a": 1, "c": 1, "x": "s"}, {"a": 1, "x": "s", "xc": 2}],
            [{}, {"a": 1}, {"a": "s"}, {"a": 1, "x": 1}, {"a": 1, "y": "s"}, {"x": "s"}],
        ),
    ],
)  # fmt: skip
def test_a_property_that_nobody_names_violates(
    make: ConstraintCompiler, schema: dict[str, Any], right: list[Any], missed: list[Any], wrong: list[Any]
) -> None:
    check_written(make, schema, right, missed, wrong)


@pytest.mark.parametrize(
    ("schema", "right", "missed", "wrong"),
    [
        ({"maxItems": 2, "contains": {"const": 1}}, [[1], [2, 1], [1, 1]], [], [[], [2], [2, 2], [1, 2, 3]]),
        (
            {"contains": {"const": 1}},
            [[1], [2, 2, 2, 1], [1, *range(20)]],
            [[2, 2, 2, 2, 1]],
            [[], [2]],
        ),
        ({"contains": {"type": "integer"}, "items": {"type": "integer"}}, [[1], [1] * 20], [], [[], ["a"]]),
        (
            {"contains": {"const": 1}, "allOf": [{"contains": {"minimum": 2}, "maxItems": 3}],
             "prefixItems": [{"const": 1}]},
            [[1, 2], [1, "a", 2]],
            [],
            [[1], [2, 1], [1, 1]],
        ),
        ({"contains": {"const": 1}, "items": {"const": 2}, "prefixItems": [{}]}, [[1], [1, 2]], [], [[2, 1]]),
    ],
)  # fmt: skip
def test_an_item_that_is_contained_is_one_of_the_first(
    make: ConstraintCompiler, schema: dict[str, Any], right: list[Any], missed: list[Any], wrong: list[Any]
) -> None:
    check_written(make, {"type": "array", **schema}, right, missed, wrong)


def test_what_contains_what_cannot_be_is_refused(make: ConstraintCompiler) -> None:
    with pytest.raises(InvalidRequestError, match="nothing can satisfy"):
        compiled(make, json={"type": "array", "items": {"type": "string"}, "contains": {"type": "integer"}})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "not": {"pattern": "(?<=ab)c"}}, "'not' with 'pattern'"),
        (
            {"type": "object", "not": {"propertyNames": {"minLength": 2}}},
            "'propertyNames' inside of an object that may have any",
        ),
        (
            {
                "type": "object",
                "patternProperties": {"(?<=ab)c": {}},
                "additionalProperties": False,
                "not": {"additionalProperties": False},
            },
            "'additionalProperties' inside of an object that may have any",
        ),
        ({"type": "number", "not": {"type": "integer"}}, "'not' with type integer"),
        ({"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "integer"}]}, "'not' with type integer"),
        ({"type": "array", "not": {"enum": [[1]]}}, "'enum' of arrays or objects"),
        ({"type": "array", "not": {"contains": {"const": 1}, "minContains": 2}}, "'not' with 'contains'"),
        ({"type": "object", "not": {"required": "a"}}, "required must be a list"),
        ({"type": "string", "not": {"enum": ["".join(map(str, range(9000)))]}}, "'enum' of this length"),
    ],
)
def test_what_has_no_list_of_violations_is_refused_by_name(
    make: ConstraintCompiler, schema: dict[str, Any], says: str
) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedError), match=re.escape(says)):
        compiled(make, json=schema)


def test_of_too_many_ways_to_violate_something_some_are_kept(make: ConstraintCompiler) -> None:
    """Each alternative can be written, what is written is valid, and that some is missing is said."""
    schema = {
        "type": "object",
        "oneOf": [{"required": [f"{name}{at}" for name in "abc"]} for at in range(12)],
    }
    found, narrow, _ = written(schema)
    assert narrow
    assert len(json.dumps(found)) < 200_000
    constraint = compiled(make, json=schema)
    judge = jsonschema.Draft202012Validator(schema)
    for at in range(12):
        assert accepts(constraint, json.dumps({f"{name}{at}": 1 for name in "abc"}))
    both = {f"{name}{at}": 1 for at in (0, 1) for name in "abc"}
    for value in ({}, {"a0": 1, "b0": 1}, both, {**both, "a2": 1}):
        assert not judge.is_valid(value)
        assert not accepts(constraint, json.dumps(value)), value
    few = {"type": "object", "oneOf": [{"required": [f"{name}{at}" for name in "abc"]} for at in range(3)]}
    assert not written(few).narrow


def test_an_item_that_violates_is_one_of_the_first(make: ConstraintCompiler) -> None:
    schema = {"type": "array", "not": {"items": {"const": 1}}}
    constraint = compiled(make, json=schema)
    assert written(schema).narrow
    for value, expected in (([2], True), ([1, 1, 1, 2], True), ([], False), ([1, 1], False)):
        assert jsonschema.Draft202012Validator(schema).is_valid(value) is expected
        assert reachable(constraint, value) is expected


def test_what_was_left_out_never_counts_as_impossible(
    make: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that takes a narrower list for all there is holds alternatives for disjoint that overlap."""
    ones = {"not": {"items": {"const": 1}}}  # of which an item at the sixth place is left out
    late = {"minItems": 6, "prefixItems": [{"const": 1}] * 5}
    schema = {"type": "array", "oneOf": [{**late, **ones}, {"minItems": 6}]}
    value = [1, 1, 1, 1, 1, 2]
    assert not jsonschema.Draft202012Validator(schema).is_valid(value)
    assert not reachable(compiled(make, json=schema), value)

    monkeypatch.setattr(cases.Cases, "_leave_out", lambda *_: None)
    assert reachable(compiled(ConstraintCompiler(ByteTokenizer()), json=schema), value)


def test_the_expression_of_all_other_strings() -> None:
    draw = random.Random(0)
    for _ in range(200):
        words = ["".join(draw.choices("ab-]^\\\n[", k=draw.randrange(4))) for _ in range(draw.randint(1, 5))]
        found = re.compile(all_but(words))
        for text in [*words, *("".join(draw.choices("ab-]^\\\n[", k=draw.randrange(5))) for _ in range(40))]:
            assert bool(found.fullmatch(text)) is (text not in words), (words, text)


def test_many_conditions_on_one_property_are_few_combinations(make: ConstraintCompiler) -> None:
    """Of 2 ** 20 combinations, 21 contradict nothing."""
    kinds = [f"k{number}" for number in range(20)]
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": [*kinds, "other"]}},
        "required": ["kind"],
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}}, "then": {"required": [kind]}} for kind in kinds
        ],
    }
    constraint = compiled(make, json=schema)
    for value, expected in (
        ({"kind": "k7", "k7": 1}, True), ({"kind": "other"}, True), ({"kind": "k7", "k8": 1}, False),
        ({"kind": "k21"}, False), ({"k1": 1}, False),
    ):  # fmt: skip
        assert jsonschema.Draft202012Validator(schema).is_valid(value) is expected
        assert reachable(constraint, value) is expected


@pytest.mark.parametrize(
    "part", [{"const": 1}, {"const": 1, "minimum": 5}, {"enum": [1, "a"], "type": "string"}, {"enum": [1, 2]}]
)
def test_only_values_that_satisfy_all_of_a_condition_are_excluded(
    make: ConstraintCompiler, part: dict[str, Any]
) -> None:
    schema = {
        "type": "object", "required": ["a"], "properties": {"a": {"enum": [1, 2, None, "a"]}},
        "additionalProperties": False, "not": {"properties": {"a": part}},
    }  # fmt: skip
    constraint = compiled(make, json=schema)
    judge = jsonschema.Draft202012Validator(schema)
    for value in (1, 2, None, "a"):
        assert reachable(constraint, {"a": value}) is judge.is_valid({"a": value})


def test_a_reference_that_leads_back_to_itself_lets_nothing_through(make: ConstraintCompiler) -> None:
    constraint = compiled(make, json={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
    assert accepts(constraint, "null")
    assert not accepts(constraint, "1")
    with pytest.raises(InvalidRequestError, match="nothing can satisfy"):
        compiled(make, json={"allOf": [{"$ref": "#"}]})


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"oneOf": [{"$ref": "#"}, {"type": "string"}]}, {"type": "null"}]},
        {"$ref": "#/$defs/t", "$defs": {
            "t": {"oneOf": [{"$ref": "#/$defs/u"}, {"type": "null"}]},
            "u": {"oneOf": [{"$ref": "#/$defs/t"}, {"type": "string"}]}}},
    ],
)  # fmt: skip
def test_alternatives_that_lead_back_to_themselves_end(
    make: ConstraintCompiler, schema: dict[str, Any]
) -> None:
    constraint = compiled(make, json=schema)
    assert accepts(constraint, "null")
    assert accepts(constraint, '"a"')
    assert not accepts(constraint, "1")


def a_schema(draw: random.Random, depth: int) -> Any:
    if depth == 0:
        return draw.choice(
            [
                {"type": "string"},
                {"enum": ["a", 1]},
                {"const": "b"},
                {"type": "integer"},
                {"minimum": 1},
                True,
            ]
        )

    if draw.random() < 0.2:  # what tells alternatives apart, of objects only
        values = draw.choice([[1], [2], [1, "a"]])
        return {
            "required": ["a"],
            "properties": {"a": {"enum": values}},
            **draw.choice([{}, {"type": "object"}]),
        }

    def sub() -> Any:
        return a_schema(draw, depth - 1)

    makers: dict[str, Any] = {
        "type": lambda: draw.choice(["integer", "string", "array", "object", ["object", "string"]]),
        "minimum": lambda: 1,
        "minLength": lambda: 1,
        "enum": lambda: draw.sample(["a", "ab", 1, 2, None, [], {}, True], 4),
        "const": lambda: draw.choice(["a", 1, True]),
        "items": sub,
        "prefixItems": lambda: [sub(), sub()],
        "maxItems": lambda: draw.choice([1, 2]),
        "contains": lambda: draw.choice([True, sub()]),
        "patternProperties": lambda: {
            pattern: sub() for pattern in draw.sample(["^a", "b", "^[bc]$", r"\bc"], draw.randint(1, 2))
        },
        "propertyNames": lambda: draw.choice([{"pattern": "^[ab]", "maxLength": 1}, {"enum": ["a", "c"]}]),
        "properties": lambda: {
            name: draw.choice([sub, lambda: {"enum": draw.sample([1, 2, "a"], 2)}])()
            for name in draw.sample(["a", "b"], draw.randint(1, 2))
        },
        "required": lambda: draw.sample(["a", "b"], draw.randint(1, 2)),
        "additionalProperties": lambda: draw.choice([False, False, sub()]),
        "dependentRequired": lambda: {"a": ["b"]},
        "dependentSchemas": lambda: {"b": sub()},
        "not": sub,
        "oneOf": lambda: [sub(), sub()],
        "anyOf": lambda: [sub(), sub()],
        "allOf": lambda: [sub(), sub()],
        "if": sub,
        "else": sub,
    }
    return {word: makers[word]() for word in draw.sample(sorted(makers), draw.randint(1, 3))}


def a_value(draw: random.Random, depth: int = 2) -> Any:
    kind = draw.randrange(8 if depth else 4)
    if kind >= 6:
        return [a_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind >= 4:
        return {name: a_value(draw, depth - 1) for name in draw.sample("abc", draw.randrange(4))}
    return draw.choice([0, 1, 2, 1.5, "", "a", "ab", "b", None, True, False])


@pytest.mark.parametrize("seed", range(4))
def test_random_combinations_are_kept_from_both_sides(make: ConstraintCompiler, seed: int) -> None:
    """An instance can be written only if it is valid, and if it is, where nothing was left out."""
    draw = random.Random(seed)
    served = exact = valid = invalid = 0
    for _ in range(300):
        schema = {"oneOf": [a_schema(draw, 2), a_schema(draw, 2)], **a_schema(draw, 2)}
        try:
            constraint = compiled(make, json=schema)
        except (InvalidRequestError, UnsupportedError):
            continue
        narrow = written(schema).narrow
        served, exact = served + 1, exact + (not narrow)
        judge = jsonschema.Draft202012Validator(schema)
        for value in [a_value(draw) for _ in range(20)]:
            expected = judge.is_valid(value)
            valid, invalid = valid + expected, invalid + (not expected)
            if expected and narrow:
                continue
            assert reachable(constraint, value) is expected, json.dumps([schema, value])
    assert exact > 120
    assert served - exact > 20
    assert min(valid, invalid) > 400


def told(schema: Any) -> tuple[Any, Any]:
    """The schema that is written, or why none is; and why it allows less."""
    try:
        found, narrow, _ = written(schema)
    except (InvalidRequestError, UnsupportedError) as error:
        return type(error).__name__, str(error)
    return json.dumps(found), list(map(str, narrow))


@pytest.mark.parametrize("seed", range(4))
def test_subschemas_that_combine_nothing_are_written_as_by_the_long_way(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of what must hold by itself no lists are multiplied; with the same words in allOf they are."""
    draw = random.Random(seed)
    schemas = [a_schema(draw, 3) for _ in range(400)]
    short = list(map(told, schemas))
    with monkeypatch.context() as patch:
        patch.setattr(Cases, "_alone", lambda self, number, schema: self._multiplied({(number, True)}))
        assert list(map(told, schemas)) == short
    assert sum(found[0].startswith("{") for found in short) > 100


def test_long_words_are_no_deep_groups() -> None:
    word = "a" * 190
    for text, found in ((word, False), (word[:-1], True), (word[:32], True), ("b", True), (word + "a", True)):
        assert matches_pattern(all_but([word, "a" * 64 + "b"]), text) is found
    assert not matches_pattern(all_but([word, "a" * 64 + "b"]), "a" * 64 + "b")


def test_a_list_of_all_but_some_words_grows_as_they_do() -> None:
    """Beginnings are written once: of words that are twice as long it is at most 2.5 times as long."""
    sizes = [len(all_but(["letters" * many])) for many in (1, 2, 4, 8)]
    assert max(longer / shorter for shorter, longer in itertools.pairwise(sizes)) < 2.5


A_NUMBER, A_TEXT = (
    {"properties": {"a": {"type": kind}}, "required": ["a"]} for kind in ("integer", "string")
)


def test_what_all_alternatives_hold_of_is_none_of_a_one_of(make: ConstraintCompiler) -> None:
    """Of what is no object each alternative holds; and of objects one at most, so nothing is violated."""
    schema = {"oneOf": [A_NUMBER, A_TEXT]}
    found, narrow, _ = written(schema)
    assert not narrow
    assert json.dumps(found).count('"required"') == 2
    constraint = compiled(make, json=schema)
    for text, valid in (('{"a":1}', True), ('{"a":"x"}', True), ('{"a":null}', False), ("1", False)):
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)) is valid
        assert accepts(constraint, text) is valid
    listed = compiled(make, json={"enum": [1, {"a": 1}, {"a": None}, {"a": "x"}], **schema})
    assert [text for text in ("1", '{"a":1}', '{"a":null}', '{"a":"x"}') if accepts(listed, text)] == [
        '{"a":1}',
        '{"a":"x"}',
    ]
    with pytest.raises(InvalidRequestError, match="nothing can satisfy"):
        written({"enum": [1, "x"], **schema})


def test_of_many_ways_those_that_take_little_text_are_kept(make: ConstraintCompiler) -> None:
    """Of what may be wrong with an alternative: a name that is absent, rather than parts of a nested one."""
    nested = {"type": "object", "properties": {f"p{at}": {"type": "object"} for at in range(9)}}
    schema = {
        "type": "object",
        "oneOf": [{"required": [f"n{at}"], "properties": {f"n{at}": nested}} for at in range(9)],
    }
    found, narrow, _ = written(schema)
    assert narrow
    assert '"required": ["p0"]' not in json.dumps(found)
    constraint = compiled(make, json=schema)
    for at in range(9):
        assert accepts(constraint, json.dumps({f"n{at}": {"p0": {}}}))
    assert not accepts(constraint, '{"n0":{},"n1":{}}')
