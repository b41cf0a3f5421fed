"""Structured outputs: what each kind allows, where it may end, and what is refused."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import numpy as np
import pytest

from octavo.errors import InvalidRequestError, OctavoError, UnsupportedError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.sampling import RowError, Sampler, SamplingRows
from octavo.sampling.constraints import AllowedTokens, ConstraintError, full_mask
from octavo.sampling.logits import allowed
from octavo.structured import ConstraintCompiler, compiler
from octavo.structured.schema import PARTLY, SUPPORTED, writer
from support.grammars import END, VOCAB, ByteTokenizer, accepts, compiled, next_tokens

pytestmark = pytest.mark.usefixtures("no_clock")

TAG = {"structures": [{"begin": "<f=", "schema": {"type": "integer"}, "end": ">"}], "triggers": ["<f"]}

DIGITS_TAG = {"type": "regex", "pattern": r"\d/[\d]"}
NEW_TAG = {"type": "structural_tag", "format": {
    "type": "triggered_tags", "triggers": ["<f"], "at_least_one": False,
    "tags": [{"type": "tag", "begin": "<f=", "end": ">",
              "content": {"type": "json_schema", "json_schema": {"type": "integer"}}}],
}}  # fmt: skip
NUMBER = {"type": "json_schema", "json_schema": {"enum": [1, 2]}}
FORM = {"format": {"type": "sequence", "elements": [
    {"type": "or", "elements": [
        {"type": "tag", "begin": "<", "content": NUMBER, "end": ">"},
        {"type": "json_schema", "json_schema": {"type": "null"}},
    ]},
    {"type": "const_string", "value": ";"},
    {"type": "regex", "pattern": "x\\/y|z|x/w"},
]}}  # fmt: skip


@pytest.fixture(scope="module")
def make() -> ConstraintCompiler:
    return ConstraintCompiler(ByteTokenizer())


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ({"regex": "[ab]{2,3}"}, ["ab", "bbb"], ["a", "abab", "c", "ab "]),
        ({"regex": r"\d[\d.]\D\\d"}, [r"12x\d", r"1.x\d"], ["\u0661\u0662x\\d", r"122\d", "12x3"]),
        ({"regex": r"[^\d]"}, ["a"], ["4"]),
        ({"choice": ["yes", "no", 'it "is"']}, ["yes", 'it "is"'], ["ye", "yesno", "maybe"]),
        ({"grammar": 'start: "a" /[0-9]+/ "b"'}, ["a1b", "a123b"], ["ab", "a1"]),
        ({"grammar": 'root ::= "a" [0-9]+ "b"'}, ["a1b"], ["ab", "a1bb"]),
        ({"grammar": '?start: "a" b\n?b: "c" | "d"'}, ["ac", "ad"], ["a", "acd"]),
        ({"json_object": True}, ["{}", '{"a": [1, null]}'], ["[]", "1", '{"a":}', "{} "]),
        ({"json": {"type": "integer", "minimum": 3}}, ["3", "17"], ["2", "3.5", '"3"']),
        ({"json": '{"enum": ["x", 1]}'}, ['"x"', "1"], ['"y"', "11"]),
        ({"structural_tag": {"format": DIGITS_TAG}}, ["1/2"], ["\u0661/2", "1/x"]),
        ({"structural_tag": NEW_TAG}, ["plain", "a <f=12> b", "<f=1><f=2>"], ["a <f=x>", "<f", "<f=1"]),
        ({"structural_tag": FORM}, ["<1>;x/y", "<2>;z", "null;x/w"], ["<x>;z", "<1>;", "1;z"]),
        ({"structural_tag": TAG}, ["plain", "a <f=12> b", "<f=1><f=2>"], ["a <f=x>", "<f", "<f=1"]),
    ],
)
def test_each_kind_allows_what_it_says(
    make: ConstraintCompiler, wanted: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    constraint = compiled(make, **wanted)
    assert [text for text in right if not accepts(constraint, text)] == []
    assert [text for text in wrong if accepts(constraint, text)] == []


def test_all_end_tokens_and_only_where_the_grammar_may_end(make: ConstraintCompiler) -> None:
    constraint = compiled(make, regex="ab?")
    assert next_tokens(constraint, []) == {ord("a")}
    assert next_tokens(constraint, [*b"a"]) == {ord("b"), END, END + 1}
    assert next_tokens(constraint, [*b"ab"]) == {END, END + 1}


def test_control_tokens_and_padding_are_never_allowed(make: ConstraintCompiler) -> None:
    constraint = compiled(make, regex="(.|\n)*")
    wide = full_mask(1, VOCAB + 100)[0]  # logits padded beyond the tokenizer's vocabulary
    constraint.start([]).restrict(wide)
    may = allowed(wide, VOCAB + 100)
    assert not may[VOCAB:].any()
    assert not may[259]
    assert may[258]


def test_drafts_are_looked_ahead_at_and_rolled_back(make: ConstraintCompiler) -> None:
    constraint = compiled(make, regex="abcd")
    matcher = constraint.start([*b"a"])
    for ahead, expected in (([], "b"), ([*b"b"], "c"), ([*b"bc"], "d"), ([], "b")):
        mask = full_mask(1, VOCAB)[0]
        matcher.restrict(mask, ahead)
        assert np.flatnonzero(allowed(mask, VOCAB)).tolist() == [ord(expected)]
    matcher.restrict(full_mask(1, VOCAB)[0], [*b"x"])  # a wrong draft harms nobody
    mask = full_mask(1, VOCAB)[0]
    matcher.restrict(mask)
    assert np.flatnonzero(allowed(mask, VOCAB)).tolist() == [ord("b")]


def test_a_matcher_that_starts_late_continues(make: ConstraintCompiler) -> None:
    constraint = compiled(make, json={"type": "array", "items": {"type": "boolean"}, "maxItems": 2})
    text = b"[true,fal"
    early = constraint.start([])
    early.append([*text])
    masks = full_mask(2, VOCAB)
    early.restrict(masks[0])
    constraint.start([*text]).restrict(masks[1])
    assert masks[0].tolist() == masks[1].tolist()


def test_a_token_against_the_grammar_fails_the_row_alone(make: ConstraintCompiler) -> None:
    params = make.compile(SamplingParams(structured_outputs=StructuredOutputsParams(regex="ab")))
    rows = SamplingRows(2, VOCAB, (END,))
    rows.add(0, params, 1, 0, [1, *b"x"], 1)
    rows.add(1, params, 1, 0, [1], 1)
    batch = rows.batch([0, 1], [2, 1])
    assert list(batch.errors) == [0]
    first, second = Sampler().sample(np.zeros((2, VOCAB), np.float32), batch)
    assert isinstance(first, RowError)
    assert not isinstance(second, RowError)
    assert second.token_id == ord("a")


def test_masks_of_many_rows_are_those_of_each(make: ConstraintCompiler) -> None:
    """Together as alone: padding, two grammars in a row, a row that comes twice, drafts, an error."""
    wishes = [
        (["json", {"type": "array", "items": {"enum": ["x", 1]}}], b"["),
        (["regex", "[ab]{2,3}"], b"ab"),
        (["regex", "[ab]{2,3}"], b"x"),
        (["choice", ["yes", "no"]], b"n"),
    ]
    constraints = [compiled(make, **{kind: value}) for (kind, value), _ in wishes]
    also = compiled(make, regex="[yn][eo]s?")
    wide = VOCAB + 100
    rows = SamplingRows(len(wishes) + 1, wide, (END,), mask_threads=2)
    for row, (constraint, (_, output)) in enumerate(zip(constraints, wishes, strict=True)):
        both = (constraint, also) if row == 3 else (constraint,)
        rows.add(row, SamplingParams(constraints=both), 1, 0, [1, *output], 1)
    rows.add(4, SamplingParams(), 1, 0, [1], 1)
    order, ahead = [3, 0, 2, 4, 1, 0, 0], [[], [], [], [], [], [], [*b"1"]]
    batch = rows.batch(order, [5] * len(order), ahead)
    assert batch.mask is not None
    assert list(batch.errors) == [2]
    for index, (row, draft) in enumerate(zip(order, ahead, strict=True)):
        alone = full_mask(1, wide)[0]
        if row == 2:
            continue
        for constraint in [] if row == 4 else [constraints[row], *([also] if row == 3 else [])]:
            constraint.start([*wishes[row][1]]).restrict(alone, draft)
        assert batch.mask[index].tolist() == alone.tolist(), index


@pytest.mark.parametrize("vocab", [VOCAB, VOCAB + 100])
def test_a_row_asked_alone_has_the_mask_that_it_has_in_a_batch(make: ConstraintCompiler, vocab: int) -> None:
    """After its token was not taken: of one grammar, of several constraints, and of one that is lost."""
    one, two = compiled(make, regex="(a|bc)*d"), compiled(make, regex="[a-c]+d")
    also = AllowedTokens([ord("b"), ord("d")])
    wishes: list[tuple[Any, bytes, bytes]] = [
        ((one,), b"", b"abd"),
        ((one, two), b"", b"ab"),
        ((two, also), b"", b"b"),
    ]
    rows = SamplingRows(4, vocab, (END,))
    for row, (constraints, output, _) in enumerate([*wishes, ((two,), b"d?", b"")]):
        rows.add(row, SamplingParams(constraints=constraints), 1, 0, [1, *output], 1)
    for row, (_, _, expected) in enumerate(wishes):
        assert not rows.take(row, ord("x"))
        batch = rows.batch([row], [1])
        assert batch.mask is not None
        assert rows.mask(row) is None
        assert rows.row_mask.tolist() == batch.mask[0].tolist()
        assert np.flatnonzero(allowed(rows.row_mask, vocab)).tolist() == [*expected]
    assert not rows.take(3, ord("a"))
    assert "grammar" in (rows.mask(3) or "")


def test_masks_are_those_of_the_last_token(make: ConstraintCompiler) -> None:
    """Buffers that are used again, batches that shrink and grow."""
    constraint = compiled(make, regex="(a|bc)*d")
    rows = SamplingRows(3, VOCAB, (END,))
    matchers = [constraint.start([]) for _ in range(3)]
    for row in range(3):
        rows.add(row, SamplingParams(constraints=(constraint,)), 1, 0, [1], 1)
    draw = random.Random(2)
    for step in range(60):
        order = draw.sample(range(3), draw.randint(1, 3))
        batch = rows.batch(order, [step + 1] * len(order))
        assert batch.mask is not None
        for index, row in enumerate(order):
            alone = full_mask(1, VOCAB)[0]
            matchers[row].restrict(alone)
            assert batch.mask[index].tolist() == alone.tolist()
            choices = [t for t in np.flatnonzero(allowed(alone, VOCAB)).tolist() if t in b"abc"]
            token = draw.choice(choices)
            rows.append(row, [token])
            matchers[row].append([token])


def test_a_random_model_writes_valid_json(make: ConstraintCompiler) -> None:
    """Every allowed token leads to a whole answer: walks through the masks always parse and validate."""
    import jsonschema

    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
            "n": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": -5, "maximum": 5}]},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
    constraint = compiled(make, json=schema)
    draw = random.Random(1)
    for _ in range(40):
        matcher, output = constraint.start([]), []
        for _ in range(2000):
            mask = full_mask(1, VOCAB)[0]
            matcher.restrict(mask)
            token = draw.choice(np.flatnonzero(allowed(mask, VOCAB)).tolist())
            if token in (END, END + 1):
                break
            output.append(token)
            matcher.append([token])
        text = b"".join(b"bad" if t == 258 else bytes([t]) for t in output)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"regex": "(["}, "structured_outputs"),
        ({"regex": "x" * 20_000}, "at most 10000"),
        ({"choice": []}, "choice"),
        ({"choice": ["a"] * 3000}, "choice"),
        ({"choice": [1]}, "choice"),
        ({"grammar": "start: x"}, "structured_outputs"),
        ({"grammar": " "}, "Lark or GBNF"),
        ({"json": "{"}, "not JSON"),
        ({"json": {"contains": {"const": 1}, "minContains": 2}}, "'contains' with 'minContains' or"),
        ({"json": {"type": "robot"}}, "not a JSON type"),
        ({"json": {"minimum": "a"}}, "minimum"),
        ({"grammar": 'start: "a" %json {"uniqueItems": true}'}, "uniqueItems"),
        ({"json": {"$ref": "https://example.com/s"}}, "does not point into"),
        ({"json": {"$schema": "urn:x"}}, "dialect"),
        ({"json": False}, "nothing can satisfy"),
        ({"json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "nothing can satisfy"),
        ({"json": {"anyOf": []}}, "non-empty list"),
        ({"structural_tag": {"structures": []}}, "structural_tag"),
        ({"structural_tag": {"structures": [{"begin": "x"}], "triggers": ["y"]}}, "no trigger"),
        ({"structural_tag": {"structures": [5], "triggers": ["y"]}}, "structural_tag"),
        ({"structural_tag": {"format": {"type": "any_text"}}}, "'any_text' is not supported"),
        ({"structural_tag": {"format": {"type": "regex", "pattern": ""}}}, "must not be empty"),
        ({"structural_tag": {"format": {"type": "regex", "pattern": "a\\"}}}, "structured_outputs"),
        ({"structural_tag": {"format": {"type": "regex"}}}, "pattern must be a string"),
        ({"structural_tag": {"format": {"type": "sequence", "elements": []}}}, "list of elements"),
        (
            {"structural_tag": {"format": {"type": "regex", "pattern": "((a{1000}){1000})"}}},
            "repeats|repetitions",
        ),
        ({"structural_tag": {"format": {"type": "triggered_tags", "at_least_one": True}}}, "at_least_one"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(
    make: ConstraintCompiler, wanted: dict[str, Any], text: str
) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedError), match=text) as caught:
        compiled(make, **wanted)
    assert caught.value.param == "structured_outputs"
    assert "\n" not in str(caught.value)


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        deep(100),
        deep(10_000),
        {"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(20)]},
        {"properties": {str(i): {"type": "string"} for i in range(6000)}},
        {"oneOf": [{"properties": {str(i): {"minimum": j} for i in range(30)}} for j in range(30)]},
        {"type": "string", "pattern": "(a|aa)+$" * 3000},
    ],
    ids=["deep", "very deep", "exponential", "wide", "overlapping", "long pattern"],
)
def test_hostile_schemas_end_as_errors(make: ConstraintCompiler, schema: dict[str, Any]) -> None:
    with pytest.raises(OctavoError):
        compiled(make, json=schema)


def test_recursive_schemas_are_followed(make: ConstraintCompiler) -> None:
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}},
        "additionalProperties": False,
    }
    constraint = compiled(make, json=tree)
    assert accepts(constraint, '{"left": {"right": {}}}')
    assert not accepts(constraint, '{"left": {"middle": {}}}')


def test_exactly_one_kind_is_asked_for() -> None:
    with pytest.raises(InvalidRequestError, match="regex and choice given"):
        StructuredOutputsParams(regex="a", choice=["b"])
    with pytest.raises(InvalidRequestError, match="none given"):
        StructuredOutputsParams()


@pytest.mark.parametrize("other", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_contradicts_a_grammar_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="contradicts structured_outputs"):
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"), **other)


def test_equal_grammars_are_compiled_once(make: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(make, json={"type": "integer"})
    assert compiled(make, json={"type": "integer"}) is first
    monkeypatch.setattr(compiler, "CACHED", 2)
    compiled(make, regex="q")
    compiled(make, regex="r")
    assert compiled(make, json={"type": "integer"}) is not first


def test_compiling_leaves_the_loop_free(make: ConstraintCompiler) -> None:
    async def both() -> tuple[SamplingParams, int]:
        properties = {f"p{i}": {"type": "string", "maxLength": i} for i in range(300)}
        wish = SamplingParams(structured_outputs=StructuredOutputsParams(json={"properties": properties}))
        work = asyncio.ensure_future(make.compile_async(wish))
        turns = 0
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
        return work.result(), turns

    params, turns = asyncio.run(both())
    assert len(params.constraints) == 1
    assert turns > 10


def test_errors_of_the_pool_reach_the_caller(make: ConstraintCompiler) -> None:
    wish = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(["))
    with pytest.raises(InvalidRequestError):
        asyncio.run(make.compile_async(wish))


def test_a_stopped_matcher_reports_what_it_is_fed(make: ConstraintCompiler) -> None:
    matcher = compiled(make, regex="a").start([*b"a"])
    matcher.append([*b"b"])
    with pytest.raises(ConstraintError, match="grammar failed"):
        matcher.restrict(full_mask(1, VOCAB)[0])


OPEN = {"$defs": {"base": {"properties": {"a": {"type": "integer"}}}}, "allOf": [{"$ref": "#/$defs/base"}]}
PAIR = {"type": "array", "items": {"enum": ["a", "b", 1]}, "maxItems": 2, "uniqueItems": True}
LIST = {
    "$id": "https://example.com/root",
    "$ref": "list",
    "$defs": {
        "own": {"$dynamicAnchor": "item", "type": "boolean"},
        "list": {
            "$id": "list",
            "type": "array",
            "items": {"$dynamicRef": "#item"},
            "$defs": {"any": {"$dynamicAnchor": "item"}},
        },
    },
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (PAIR, ["[]", '["a",1]', '["b","a"]'], ['["a","a"]', "[1,1]", '["a","b",1]']),
        ({**PAIR, "minItems": 2}, ['["b",1]'], ["[]", '["a"]']),
        (
            {"type": "array", "prefixItems": [{"type": "boolean"}] * 2, "items": False, "uniqueItems": True},
            ["[true,false]", "[true]"],
            ["[true,true]"],
        ),
        (
            {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": {"const": 1}},
            ["{}", '{"ab": 1, "é€": 1}'],
            ['{"abc": 1}', '{"ab": 2}'],
        ),
        (
            {
                "type": "object",
                "propertyNames": {"enum": ["x", "y"]},
                "properties": {"z": {}, "x": {"const": 1}},
            },
            ['{"x": 1}', '{"y": 2}', '{"x": 1, "y": null}'],
            ['{"z": 1}', '{"x": 2}', '{"w": 1}'],
        ),
        (
            {"type": "object", **OPEN, "properties": {"b": {}}, "unevaluatedProperties": False},
            ['{"a": 1}', '{"b": 1}', "{}"],
            ['{"c": 1}', '{"a": "x"}'],
        ),
        (
            {
                "type": "array",
                "prefixItems": [{"const": 1}],
                "allOf": [{"prefixItems": [{}, {"const": 2}]}],
                "unevaluatedItems": {"const": 3},
            },
            ["[]", "[1, 2]", "[1, 2, 3, 3]"],
            ["[1, 3]", "[1, 2, 4]"],
        ),
        (LIST, ["[]", "[true, false]"], ["[1]", '["x"]']),
    ],
    ids=[
        "unique",
        "unique and least",
        "unique tuple",
        "short names",
        "listed names",
        "open",
        "tuple",
        "dynamic",
    ],
)
def test_keywords_that_are_written_out(
    make: ConstraintCompiler, schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    constraint = compiled(make, json=schema)
    assert [text for text in right if not accepts(constraint, text)] == []
    assert [text for text in wrong if accepts(constraint, text)] == []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"items": {"type": "string", "pattern": "^a$"}, "uniqueItems": True, "minItems": 2}, "uniqueItems"),
        ({"propertyNames": {"format": "date", "maxLength": 3}}, "propertyNames"),
        ({"propertyNames": {"maxLength": 10**9}}, "propertyNames"),
        ({"propertyNames": {"maxLength": 3}, "patternProperties": {"(?<=ab)": {}}}, "propertyNames"),
        ({"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"contains": {"const": 1}, "unevaluatedItems": False}, "unevaluatedItems|contains"),
        ({"$ref": "b", "$defs": {
            "b": {"$id": "b", "$dynamicRef": "#x", "$defs": {"y": {"$dynamicAnchor": "x", "type": "null"}}},
            "c": {"$id": "c", "$dynamicAnchor": "x"},
        }}, "dynamicRef"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_out_is_refused_by_keyword(
    make: ConstraintCompiler, schema: dict[str, Any], text: str
) -> None:
    with pytest.raises((InvalidRequestError, UnsupportedError), match=text):
        compiled(make, json=schema)


def test_the_list_of_keywords_names_known_ones() -> None:
    assert set(PARTLY) <= SUPPORTED


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {} for i in range(count)}}


PATTERNS = {"patternProperties": {f"^a{i}$": {} for i in range(writer.MAX_PATTERNS + 1)}}


def test_the_largest_schemas_can_be_answered(make: ConstraintCompiler) -> None:
    """Rows of the parser are longest where any of the properties may come next."""
    most = writer.MAX_PROPERTIES
    assert accepts(compiled(make, json=optional(most)), '{"p0":1,"p3":[2],"q":3}')
    objects = [{"enum": [{f"a{i}": i}]} for i in range(100)]
    mixed = {"anyOf": [optional(most - 2 * 100), *objects]}
    with pytest.raises(UnsupportedError, match="alternatives"):
        compiled(make, json=mixed)
    assert accepts(compiled(make, json={"enum": [{f"a{i}": i} for i in range(1000)]}), '{"a3":3}')


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (optional(writer.MAX_PROPERTIES + 1), "901 properties at one place"),
        ({"anyOf": [optional(450), optional(450)]}, "900 properties at one place, 2 alternatives"),
        (
            {"properties": {f"o{k}": {**optional(800), "required": [f"p{k}"]} for k in range(6)}},
            "more than 4000 properties",
        ),
        (PATTERNS, "200 patterns of names"),
        ({"oneOf": [{"const": i} for i in range(2000)]}, "too many combinations"),
    ],
)
def test_larger_schemas_are_refused_before_any_answer(
    make: ConstraintCompiler, schema: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        compiled(make, json=schema)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"json": {"minimum": 1e300, "maximum": 1e301}}, "'minimum' is followed from -92233720368547758"),
        ({"json": {"maxLength": -1}}, "maxLength must be a whole number from 0, not -1"),
        ({"json": {"maxLength": 1e12}}, "'maxLength' is followed up to 4294967295"),
        ({"json": {"multipleOf": 0}}, "multipleOf must be above 0, not 0"),
        ({"grammar": "start: start"}, "leads back to itself"),
    ],
)
def test_refusals_are_in_words(make: ConstraintCompiler, wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        compiled(make, **wanted)


def test_a_format_says_nothing_about_what_is_no_string(make: ConstraintCompiler) -> None:
    assert accepts(compiled(make, json={"type": "integer", "format": "int32"}), "12")
    assert accepts(compiled(make, json={"type": "integer", "format": "ipv4"}), "12")


def test_grammars_are_kept_up_to_a_number_of_bytes(
    make: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "CACHED_BYTES", 2 * compiler._weight("\0regex:q"))
    first, second = compiled(make, regex="q"), compiled(make, regex="r")
    assert compiled(make, regex="q") is first
    compiled(make, regex="s")
    assert compiled(make, regex="q") is first
    assert compiled(make, regex="r") is not second
