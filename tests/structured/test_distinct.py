"""Arrays of distinct items: what is forbidden, that no answer runs into a dead end, and what it costs."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from octavo.errors import UnsupportedError
from octavo.sampling.constraints import ConstraintError, full_mask
from octavo.sampling.logits import allowed
from octavo.structured import ConstraintCompiler, distinct
from octavo.structured.distinct import Distinct
from octavo.structured.grammar import Grammar
from octavo.structured.json_walk import JsonWalk, Seen
from octavo.structured.places import Place, places_of
from support.grammars import END, VOCAB, ByteTokenizer, WordTokenizer, accepts, compiled, next_tokens
from support.growth import LINEAR, growth

pytestmark = pytest.mark.usefixtures("no_clock")

jsonschema: Any = importlib.import_module("jsonschema")


def array(items: Any, **words: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **words}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


NAMED = closed(n={"type": "string"}, k={"enum": ["x", "y"]})
SCHEMAS: dict[str, Any] = {
    "strings": array({"type": "string"}),
    "anything": {"uniqueItems": True},
    "integers": array({"type": "integer"}),
    "numbers": array({"type": "number"}),
    "bounded numbers": array({"type": "number", "minimum": 0, "maximum": 2}),
    "halves": array({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 2}),
    "few": array({"enum": ["foo", "fob", "bar", 1, None]}),
    "few, at least": array({"enum": ["ab", "abc", "b", 1, 12]}, minItems=4),
    "range": array({"type": "integer", "minimum": 0, "maximum": 12}, minItems=3),
    "short": array({"type": "string", "maxLength": 1}),
    "pattern": array({"type": "string", "pattern": "^[ab]{1,2}$"}),
    "endless pattern": array({"type": "string", "pattern": "^a*b$"}, minItems=3),
    "objects": array(NAMED),
    "few objects": array(closed(a={"type": "boolean"}, b={"enum": [1, "1"]})),
    "nested": array(array({"enum": [1, 2]}, minItems=1)),
    "pairs": array({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
    "members": closed(tags=array({"type": "string", "maxLength": 2}), flags=array({"type": "boolean"})),
    "tuple": array({"type": "boolean"}, prefixItems=[{"type": "string"}, {"type": "integer"}]),
    "some alternatives": {
        "anyOf": [array({"type": "string"}), {"type": "array", "items": {"enum": ["a", 1]}}]
    },
    "dates": array({"type": "string", "format": "date"}),
}


class _Never:
    """Who works later, and never does."""

    def submit(self, work: Callable[[], None]) -> None:
        pass

    def shutdown(self, **options: Any) -> None:
        pass


class _AtOnce(_Never):
    def submit(self, work: Callable[[], None]) -> None:
        work()


def compiler(tokenizer: Any, worker: Any) -> ConstraintCompiler:
    made = ConstraintCompiler(tokenizer)
    made._widening.shutdown()
    made._widening = worker
    return made


@pytest.fixture(scope="module", params=[_Never, _AtOnce])
def make(request: pytest.FixtureRequest) -> ConstraintCompiler:
    """Searches go over tokens, or over bytes."""
    return compiler(ByteTokenizer(), request.param())


class _Counted(Grammar):
    made: ClassVar[list[str]] = []

    def __init__(self, source: str, vocabulary: Any, *given: Any) -> None:
        self.made.append("tokens" if vocabulary.single is None or len(vocabulary.tokens) > 257 else "bytes")
        super().__init__(source, vocabulary, *given)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Over what grammars were made."""
    monkeypatch.setattr(distinct, "Grammar", _Counted)
    monkeypatch.setattr(_Counted, "made", [])
    return _Counted.made


@pytest.mark.parametrize(
    ("schema", "searched", "plain"),
    [
        (array({"type": "string"}), None, ["", "a", "ab", "\n", "b"]),
        (array({"type": "string"}, maxItems=4), None, ["a", "b"]),
        (array({"type": "string", "maxLength": 1}), ["a", "b"], []),
        (array({"type": "integer", "minimum": 0, "maximum": 9}), [1, 2], []),
    ],
)
def test_a_grammar_over_bytes_is_made_by_the_first_search_and_nobody_waits(
    made: list[str], schema: Any, searched: Any, plain: Any
) -> None:
    later: list[Callable[[], None]] = []
    worker = _Never()
    worker.submit = later.append  # type: ignore[method-assign]  # of this one alone
    constraint = compiled(compiler(ByteTokenizer(), worker), json=schema)
    assert accepts(constraint, json.dumps(plain))
    assert (made, later) == (["tokens"], [])
    if searched is None:
        return
    assert accepts(constraint, json.dumps(searched))
    assert not accepts(constraint, json.dumps(searched[:1] * 2))
    assert (made, len(later)) == (["tokens"], 1)
    later[0]()
    assert made == ["tokens", "bytes"]
    assert accepts(constraint, json.dumps(searched))
    assert not accepts(constraint, json.dumps(searched[:1] * 2))
    assert (made, len(later)) == (["tokens", "bytes"], 1)


def test_where_tokens_cannot_stand_in_it_is_made_with_the_other_one(made: list[str]) -> None:
    class NoComma(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b", " if token_id == ord(",") else super().token_bytes(token_id)

    compiled(compiler(NoComma(), _Never()), json=array({"type": "boolean"}))
    assert made == ["tokens", "bytes"]
    made.clear()
    compiled(compiler(NoComma(), _Never()), json=array({"type": "string"}))
    assert made == ["tokens"]


class _MixedTokenizer(ByteTokenizer):
    """All bytes, and longer tokens, as models have them."""

    words = ('["', '","', '"]', "],[", "[[", "true", "false", "null", "12", "1,", ", ", '":', '{"', '"},{"')
    vocab_size = 260 + len(words)

    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id) if token_id < 260 else self.words[token_id - 260].encode()


def test_a_search_finds_the_same_over_tokens_and_over_bytes() -> None:
    tokenizer = _MixedTokenizer()
    compilers = [compiler(tokenizer, worker()) for worker in (_Never, _AtOnce)]
    size, rng = tokenizer.vocab_size, random.Random(1)
    for schema in SCHEMAS.values():
        for _ in range(3):
            rows = [compiled(each, json=schema).start([]) for each in compilers]
            for _ in range(40):
                masks = [full_mask(1, size)[0] for _ in rows]
                for row, mask in zip(rows, masks, strict=True):
                    row.restrict(mask)
                assert masks[0].tolist() == masks[1].tolist()
                tokens = np.flatnonzero(allowed(masks[0], size)).tolist()
                token = rng.choice(tokens)
                if token in tokenizer.stop_token_ids:
                    break
                for row in rows:
                    row.append([token])


@pytest.fixture(scope="module")
def words() -> ConstraintCompiler:
    return ConstraintCompiler(WordTokenizer())


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (SCHEMAS["strings"], ["[]", '["a","b"]', '["a", "a "]'], ['["a","a"]', '["a","b", "a"]']),
        (SCHEMAS["strings"], ['["\\n","n"]'], ['["\\n","\\u000a"]', '["\\"","\\""]', '["é","é"]']),
        (SCHEMAS["integers"], ["[1,12,123]", "[0,-1]"], ["[1,1]", "[0,-0]", "[12,1,12]", "[1,\n 1]"]),
        (SCHEMAS["numbers"], ["[1,1.5,15]"], ["[1,1.0]", "[10,1e1]", "[0,-0.0]", "[0.1,0.10]", "[2,20E-1]"]),
        (
            SCHEMAS["anything"],
            ['[1,true,"1",[],{},[1],null]', "[[1,2],[2,1]]", "[[1,1],1]", '[{"a":[1]},{"a":[2]}]'],
            ['[{"a":1,"b":2},{"b":2,"a":1}]', "[[1],[ 1.0 ]]", "[true,true]", '[{"a":{}},{"a":{ }}]'],
        ),
        (
            SCHEMAS["objects"],
            ['[{"n":"a","k":"x"},{"n":"a","k":"y"},{"n":"ab","k":"y"}]'],
            ['[{"n":"a","k":"x"},{"n":"a","k":"x"}]'],
        ),
        (SCHEMAS["nested"], ["[[1],[2],[1,2],[2,1]]"], ["[[1],[1]]", "[[1,1]]", "[[1,2],[2,1],[1,2]]"]),
        (SCHEMAS["members"], ['{"tags":["a"],"flags":[true,false]}'], ['{"tags":["a","a"],"flags":[]}']),
    ],
)  # fmt: skip
def test_equal_items_are_forbidden_and_no_others(
    make: ConstraintCompiler, schema: Any, right: list[str], wrong: list[str]
) -> None:
    constraint = compiled(make, json=schema)
    assert [text for text in right if not accepts(constraint, text)] == []
    assert [text for text in wrong if accepts(constraint, text)] == []


@pytest.mark.parametrize(
    ("name", "text", "may", "may_not"),
    [
        ("few", '["foo","fob",', '"1n', "f"),
        ("few", '["foo","fob","', "b", "f"),
        ("few", '["foo","fob","bar",1,null', "]", ","),
        ("range", "[1,10,11,12,", "0234", "1"),
        ("range", "[1,1", "012", ",]"),
        ("integers", "[0,", "-1", "0"),
        ("short", '["a","', 'bé"', "a"),
        ("pattern", '["a","', "ab", '"'),
        ("pattern", '["a","aa","ab","', "b", "a"),
        ("objects", '[{"n":"a","k":"x"},{"n":"a","k":"', "y", "x"),
        ("objects", '[{"n":"a","k":"x"},{"n":"a","k":"y"},{"n":"a', "b", '"'),
        ("few objects", '[{"a":true,"b":1},{"a":true,"b":"1"},{"a":', "f", "t"),
        ("nested", "[[1],[1", ",", "]"),
        ("nested", "[[1],[2],[1,2],[2", ",", "]"),
        ("nested", "[[1],[2],[1,2],[2,1]", "]", ","),
    ],
)
def test_what_can_only_end_as_an_earlier_item_is_not_begun(
    make: ConstraintCompiler, name: str, text: str, may: str, may_not: str
) -> None:
    found = next_tokens(compiled(make, json=SCHEMAS[name]), [*text.encode()])
    assert {*may.encode()[:1]} <= found
    assert found.isdisjoint({*may_not.encode()})


def walk(
    constraint: Any, size: int, ends: set[int], text_of: Callable[[int], bytes], rng: random.Random
) -> str:
    """A random answer, that ends as soon as it may once it has become long."""
    matcher, output = constraint.start([]), bytearray()
    for step in range(400):
        mask = full_mask(1, size)[0]
        matcher.restrict(mask)
        tokens = np.flatnonzero(allowed(mask, size)).tolist()
        assert tokens, f"a dead end after {bytes(output)!r}"
        if ends & {*tokens} and (step > 40 or rng.random() < 0.3):
            return output.decode()
        closing = [t for t in tokens if text_of(t)[:1] in (b"]", b"}", b'"')]
        plain = [
            t for t in tokens if t not in ends and (text_of(t)[:1].isalnum() or text_of(t)[:1] in b'",[{:')
        ]
        token = rng.choice(closing if closing and (step > 40 or rng.random() < 0.4) else plain or tokens)
        if token in ends:
            return output.decode()
        output += text_of(token)
        matcher.append([token])
    return ""


def drive(make: ConstraintCompiler, tokenizer: Any, schema: Any, seed: int) -> int:
    """Judge a random answer; whether one ended."""
    ends = set(tokenizer.stop_token_ids)
    size = tokenizer.vocab_size
    text = walk(compiled(make, json=schema), size, ends, tokenizer.token_bytes, random.Random(seed))
    if text:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    return bool(text)


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_answers_are_valid_and_end(
    make: ConstraintCompiler, words: ConstraintCompiler, name: str
) -> None:
    ended = sum(drive(make, ByteTokenizer(), SCHEMAS[name], seed) for seed in range(6))
    ended += sum(drive(words, WordTokenizer(), SCHEMAS[name], seed) for seed in range(6))
    assert ended >= 8


@pytest.mark.parametrize("name", ["strings", "few, at least", "objects", "nested", "anything", "members"])
def test_what_is_said_of_a_token_is_its_bit(words: ConstraintCompiler, name: str) -> None:
    size, rng = WordTokenizer.vocab_size, random.Random(0)
    matcher = compiled(words, json=SCHEMAS[name]).start([])
    for _ in range(60):
        mask = full_mask(1, size)[0]
        matcher.fork().restrict(mask)
        may = allowed(mask, size)
        assert [matcher.allows(token) for token in range(size)] == may.tolist()
        choices = [token for token in np.flatnonzero(may).tolist() if token != 2]
        if not choices:
            break
        matcher.append([rng.choice(choices)])


def test_drafts_leave_no_trace_and_a_late_start_continues(make: ConstraintCompiler) -> None:
    constraint = compiled(make, json=SCHEMAS["few"])
    matcher = constraint.start([*b'["foo",'])
    for ahead, said in ((b'"fob",', b'"bar"'), (b'"bar","f', b"ob"), (b"", b'"bar"'), (b'"foo"', None)):
        mask = full_mask(1, VOCAB)[0]
        matcher.restrict(mask, [*ahead])
        fresh = full_mask(1, VOCAB)[0]
        if said is not None:
            constraint.start([*b'["foo",' + ahead]).restrict(fresh)
            assert mask.tolist() == fresh.tolist()
            assert said[0] in np.flatnonzero(allowed(mask, VOCAB))
    branch = matcher.fork()
    branch.append([*b'"bar",'])
    assert not branch.allows(ord("f"))  # JSON, first
    matcher.append([*b'"'])
    branch.append([*b'"'])
    assert matcher.allows(ord("b"))
    assert not branch.allows(ord("b"))


def test_another_ones_tokens_that_hold_an_item_twice_fail_the_row(make: ConstraintCompiler) -> None:
    matcher = compiled(make, json=SCHEMAS["strings"]).start([*b'["a","a"'])
    assert not matcher.allows(ord("]"))
    with pytest.raises(ConstraintError, match="an item twice"):
        matcher.restrict(full_mask(1, VOCAB)[0])


# --- mistakes ----------------------------------------------------------------------------------------


def _no_search(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(distinct.DistinctMatcher, "_finds_another", lambda self, text: True)


def _no_digests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seen, "__contains__", lambda self, digest: False)


def _numbers_as_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("octavo.structured.json_walk._canonical", lambda text: text)


def _nothing_taken_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seen, "remove", lambda self: None)


def _strings_never_end(patch: pytest.MonkeyPatch) -> None:
    whole = JsonWalk.is_roomy
    patch.setattr(JsonWalk, "is_roomy", lambda self: self.at.mode in (4, 5) or whole(self))


def _items_never_run_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("octavo.structured.distinct.Place", lambda *given: Place(*given)._replace(roomy=True))


MISTAKES = [
    _no_search, _no_digests, _numbers_as_written, _nothing_taken_back, _strings_never_end,
    _items_never_run_out,
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_noticed(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    """A dead end, an answer that is not valid, or one that cannot be written any more."""
    mistake(monkeypatch)
    make = ConstraintCompiler(ByteTokenizer())
    noticed = 0
    for name in ("few, at least", "few", "pattern", "range", "numbers"):
        for seed in range(8):
            try:
                drive(make, ByteTokenizer(), SCHEMAS[name], seed)
            except (AssertionError, ConstraintError, jsonschema.ValidationError):
                noticed += 1
    if not accepts(compiled(make, json=SCHEMAS["numbers"]), "[1,2,12]"):
        noticed += 1
    noticed += accepts(compiled(make, json=SCHEMAS["numbers"]), "[1,1.0]")
    assert noticed


# --- costs, and what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    ['"item number %06d"', '{"n":"same beginning %06d","k":"x"}', "%d"],
)
def test_the_work_grows_with_the_text(make: ConstraintCompiler, item: str) -> None:
    schema = NAMED if item[0] == "{" else {"type": "string"} if item[0] == '"' else {"type": "integer"}
    places = places_of({"type": "array", "items": schema, "uniqueItems": True})

    def fed(count: int) -> None:
        walk = JsonWalk(places)
        for at in range(count):
            for token in ("[" if at == 0 else ",", item[:8], (item % at)[8:]) if "%" not in item[:8] else (
                "[" if at == 0 else ",", item % at
            ):  # fmt: skip
                mark = walk.mark()
                assert walk.feed(token.encode())
                walk.undo(mark)
                walk.feed(token.encode())
                walk.keep()
                walk.is_roomy()

    assert growth(fed, 400) < LINEAR


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"anyOf": [array({"type": "string"}), {"enum": [["a", "a"]]}]}, "one alternative"),
        (array({"type": "string", "pattern": "^a?$"}, minItems=2), "minItems 2"),
        (array({"type": "boolean"}, minItems=3), "minItems 3"),
        (array({**closed(), "patternProperties": {"^[xy]$": {"const": 1}}}), "named by patterns"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(make: ConstraintCompiler, schema: Any, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        compiled(make, json=schema)


def test_a_grammar_without_such_arrays_has_no_walk(make: ConstraintCompiler) -> None:
    assert isinstance(compiled(make, json=SCHEMAS["strings"]), Distinct)
    for schema in (
        {"type": "array"},
        array({"type": "string"}, maxItems=1),
        {"enum": [{"uniqueItems": True}]},
    ):
        assert not isinstance(compiled(make, json=schema), Distinct)
    assert END in next_tokens(compiled(make, json=array({"type": "string"}, maxItems=1)), [*b'["a"]'])
