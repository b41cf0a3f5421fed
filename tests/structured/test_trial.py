"""Grammars that strangers send: checked wherever they come in, tried where they can be killed, told once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from octavo.errors import InvalidRequestError, OverloadedError, UnsupportedError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.structured import ConstraintCompiler, compiler
from octavo.structured.gbnf import as_lark
from octavo.structured.grammar_source import grammar_source
from octavo.structured.lark import Regex, Schema, scan
from support.grammars import ByteTokenizer, accepts
from support.growth import LINEAR, growth

HUGE = "(a{1000}){1000}"


def tag(schema: Any, **more: Any) -> dict[str, Any]:
    """Wanted: free text with a tag of this content."""
    structure = {"begin": "<f>", "end": "</f>", "schema": schema, **more}
    return {"structural_tag": {"structures": [structure], "triggers": ["<f>"]}}


WAYS_IN: dict[str, Callable[[str], dict[str, Any]]] = {
    "regex": lambda regex: {"regex": regex},
    "json": lambda regex: {"json": {"type": "string", "pattern": regex}},
    "names": lambda regex: {"json": {"type": "object", "patternProperties": {regex: {}}}},
    "const beside": lambda regex: {"json": {"const": "a", "pattern": regex}},
    "tag": lambda regex: tag({"type": "string", "pattern": regex}),
    "strict tool": lambda regex: tag({"type": "object", "properties": {"a": {"pattern": regex}}}),
    "lark": lambda regex: {"grammar": f"start: /{regex}/"},
    "lark, flagged": lambda regex: {"grammar": f"start: /{regex}/i"},
    "lark, behind others": lambda regex: {"grammar": f'start: "a/" <|x/y|> // it is "\n | /{regex}/'},
    "lark, json": lambda regex: {"grammar": "start: %json " + json.dumps({"pattern": regex})},
    "lark, guidance": lambda regex: {
        "grammar": "start: %json " + json.dumps({"x-guidance": {"whitespace_pattern": regex}})
    },
}
TOO_LARGE = {
    "nested": HUGE,
    "spaces in counts": "(a{ 1000 }){ 1000 }",
    "spaces and commas": "(a{ 1 , 1000 }){1000, }",
    "verbose": "(?x)(a {1000}) {1000}",
    "verbose among flags": "(?ix)(a\t{1000}) {1000}",
    "verbose in a group": "(?x:(a {1000}) {1000})",
    "in a row": "(a{100}){200}" * 700,
    "single": "a{200000}",
    "singles in a row": "a{90000}" * 3,
}


@pytest.mark.parametrize("regex", TOO_LARGE)
@pytest.mark.parametrize("way", WAYS_IN)
def test_every_way_in_passes_the_same_checks(way: str, regex: str) -> None:
    with pytest.raises(InvalidRequestError, match="at most") as caught:
        grammar_source(StructuredOutputsParams(**WAYS_IN[way](TOO_LARGE[regex])))
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize("way", sorted(set(WAYS_IN) - {"const beside"}))
def test_what_repeats_little_comes_in_everywhere(way: str) -> None:
    grammar_source(StructuredOutputsParams(**WAYS_IN[way]("( ){2} {3}(?:b{ 7 })")))


def test_a_comment_of_a_verbose_expression_hides_no_count() -> None:
    with pytest.raises(InvalidRequestError, match="multiply"):
        grammar_source(StructuredOutputsParams(grammar="start: /(?x)(a{1000}) # ones\n {1000}/"))
    with pytest.raises(InvalidRequestError, match="multiply"):
        grammar_source(StructuredOutputsParams(grammar="start: /(a {1000}) {1000}/x"))


def test_lark_is_cut_where_llguidance_cuts_it() -> None:
    text = 'start: "a\\"/b/" /c\\/d"/i <|/e/|> "f"i // "/g/\n | %json {"h": "/i/"} /j/ | %regex {"k": "/l/"}'
    regexes = [found for found in scan(text) if isinstance(found, Regex)]
    schemas = [found for found in scan(text) if isinstance(found, Schema)]
    assert regexes == [Regex('c\\/d"', "i"), Regex("j", "")]
    assert [schema.value for schema in schemas] == [{"h": "/i/"}]


def test_schemas_within_lark_are_followed_or_refused_as_elsewhere() -> None:
    make = ConstraintCompiler(ByteTokenizer())

    def params(schema: Any) -> SamplingParams:
        grammar = f'start: "<" %json {json.dumps(schema)} ">"'
        return SamplingParams(structured_outputs=StructuredOutputsParams(grammar=grammar))

    constraint = make.compile(params({"allOf": [{"type": "integer"}, {"minimum": 7}]})).constraints[0]
    assert accepts(constraint, "<8>")
    assert not accepts(constraint, "<6>")
    with pytest.raises(UnsupportedError, match="unevaluated"):
        make.compile(params({"anyOf": [{"title": "a"}, {"type": "object"}], "unevaluatedProperties": False}))
    with pytest.raises(UnsupportedError, match="'contains'"):
        make.compile(params({"contains": {"const": 1}, "minContains": 2}))


WRONG: dict[str, dict[str, Any]] = {
    "a tag that is true": {"structural_tag": "true"},
    "a tag that is false": {"structural_tag": False},
    "minimum": {"json": {"minimum": 10**400}},
    "minLength": {"json": {"minLength": 10**400}},
    "multipleOf": {"json": {"multipleOf": 10**5000}},
    "a tag's minimum": tag({"type": "integer", "minimum": 10**400}),
    "a tag's reference": tag({"$ref": "//["}),
    "a reference": {"json": {"$ref": "//["}},
    "a tag's schema": tag(7),
    "a tag's depth": {"structural_tag": '{"a":' * 5000 + "1" + "}" * 5000},
    "depth": {"json": "[" * 100_000},
    "a trigger": tag({}, begin="<g>"),
    "lark": {"grammar": "start: %json {"},
    "gbnf": {"grammar": 'root ::= "\\x'},
    "gbnf, deep": {"grammar": "root ::= " + "(" * 50_000},
    "gbnf, a rule that is missing": {"grammar": "root ::= other"},
    "gbnf, names that meet": {"grammar": 'root ::= a-b a_b\na-b ::= "x"\na_b ::= "y"'},
}


@pytest.mark.parametrize("name", WRONG)
def test_whatever_is_wrong_is_the_senders(name: str) -> None:
    """No other exception comes out, which would be a status of 500."""
    make = ConstraintCompiler(ByteTokenizer())
    with pytest.raises(InvalidRequestError, match=r"^structured_outputs") as caught:
        make.compile(SamplingParams(structured_outputs=StructuredOutputsParams(**WRONG[name])))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


GBNF: dict[str, Callable[[int], str]] = {
    "a chain": lambda n: (
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(n)) + f'r{n} ::= "a"\n'
    ),
    "comments": lambda n: "#a\n" * n * 10 + 'root ::= "a"\n',
    "comments between rules": lambda n: "root ::= r0\n" + "".join(f'#a\nr{i} ::= "a"\n' for i in range(n)),
    "a long comment": lambda n: "#" + "a" * n * 30 + '\nroot ::= "a"',
    "a long literal": lambda n: f'root ::= "{"a" * n * 10}"',
    "a long class": lambda n: f"root ::= [{'a' * n * 10}]",
    "groups": lambda n: "root ::= " + '("a" ("b" ("c")) )' * n,
    "references": lambda n: "root ::= " + "b " * n * 5 + '\nb ::= "b"',
    "empty lines": lambda n: "\n" * n * 30 + 'root ::= "a"',
}


@pytest.mark.parametrize("case", GBNF)
def test_reading_gbnf_is_linear(case: str) -> None:
    assert growth(lambda n: as_lark(GBNF[case](n)), 2_000) <= LINEAR


@pytest.mark.parametrize(
    "text", ["(?x) " + "a " * 10_000, "{" * 20_000, "[" * 20_000, "(" * 20_000, "a{1}" * 9_000]
)
def test_looking_through_an_expression_is_linear(text: str) -> None:
    from octavo.structured.regex_size import repeats

    assert growth(lambda n: repeats(text * n), 2) <= LINEAR


@pytest.mark.parametrize("piece", ['"a" ', "/a/ ", "// a\n", "/ ", '"', "%json {} ", "<", "\n", "<a"])
def test_looking_through_lark_is_linear(piece: str) -> None:
    assert growth(lambda n: list(scan("start: " + piece * n)), 10_000) <= LINEAR


def test_gbnf_means_what_llguidance_makes_of_it() -> None:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = (
        'root ::= item-one+ | camelCase\nitem-one ::= "a" [b-d] # why\n'
        'camelCase ::= item-one "x"? loop\nloop ::= "y" loop?\n'
    )
    ours, theirs = as_lark(text), gbnf_to_lark(text)
    rules = [sorted(line for line in lark.splitlines() if ": " in line) for lark in (ours, theirs)]
    assert rules[0] == rules[1]


@pytest.fixture
def make() -> Iterator[ConstraintCompiler]:
    made = ConstraintCompiler(ByteTokenizer())
    yield made
    made.close()


def ask(make: ConstraintCompiler, salt: str | None = None, **wanted: Any) -> Any:
    """What compile_async() gives for it."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**wanted))
    return make.compile_async(params, salt)


def endless(job: Any, cpu_s: float) -> Any:
    raise AssertionError("no trial was to be held")


def test_no_process_starts_before_the_first_grammar(make: ConstraintCompiler) -> None:
    async def test() -> None:
        make.prepare(lambda: True)
        await make.compile_async(SamplingParams(bad_words=["x"]))
        await make.compile_async(SamplingParams())
        assert make._trials.starts == 0
        constraint = (await ask(make, regex="[ab]{2}")).constraints[0]
        assert accepts(constraint, "ab")
        assert not accepts(constraint, "abc")
        await ask(make, choice=["a", "b"])
        assert make._trials.starts == 1

    asyncio.run(test())


def test_a_vocabulary_is_read_once() -> None:
    """By the table and the trials together: each reading holds the interpreter for long."""
    read: list[int] = []

    class Counted(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            read.append(token_id)
            return super().token_bytes(token_id)

    make = ConstraintCompiler(Counted())
    asyncio.run(ask(make, regex="[ab]{2}"))
    make.close()
    assert sorted(read) == list(range(Counted.vocab_size))


def test_a_process_that_dies_is_started_again(make: ConstraintCompiler) -> None:
    async def test() -> None:
        await ask(make, regex="a")
        process = make._trials._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert accepts((await ask(make, regex="b")).constraints[0], "b")
        assert make._trials.starts == 2

    asyncio.run(test())


def test_errors_of_a_trial_are_the_senders_and_told_once(
    make: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        with pytest.raises(UnsupportedError, match="'contains'") as first:
            await ask(make, json={"contains": {"const": 1}, "minContains": 2})
        monkeypatch.setattr(make._trials, "run", endless)
        with pytest.raises(UnsupportedError) as second:
            await ask(make, json={"contains": {"const": 1}, "minContains": 2})
        assert str(first.value) == str(second.value)
        assert make.stats().failed == 1

    asyncio.run(test())


def test_nobody_is_told_by_the_time_what_others_have_asked_for(make: ConstraintCompiler) -> None:
    async def test() -> None:
        one = (await ask(make, "key/", regex="a")).constraints[0]
        assert (await ask(make, "key/", regex="a")).constraints[0] is one
        assert (await ask(make, "other/", regex="a")).constraints[0] is not one

    asyncio.run(test())


def ambiguous(number: int) -> str:
    """Small, and within the checks of size; but a thousand rules are open at every token."""
    rules = " | ".join(f'"x" a "y{i}"' for i in range(1_000))
    return f'start: "s{number}" a\na: {rules} | "z"'


def test_while_hostile_grammars_are_tried_small_ones_pass(
    make: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both attempts at each hostile one are killed; honest ones come through between them."""
    monkeypatch.setattr(compiler, "QUICK_S", 0.05)
    monkeypatch.setattr(compiler, "PATIENT_S", 0.2)
    held: list[float] = []
    run = make._trials.run

    def counted(job: Any, cpu_s: float) -> Any:
        held.extend([cpu_s] if job["kind"] == "grammar" else [])
        return run(job, cpu_s)

    monkeypatch.setattr(make._trials, "run", counted)

    async def test() -> None:
        await ask(make, regex="warm")
        hostile = [asyncio.ensure_future(ask(make, grammar=ambiguous(i))) for i in range(4)]
        await asyncio.sleep(0.01)
        await ask(make, regex="honest")
        assert held.count(0.2) < 4, "the small one had to wait for all"
        answers = await asyncio.gather(*hostile, return_exceptions=True)
        assert all(isinstance(each, InvalidRequestError) for each in answers), answers
        assert make.stats().killed == 4
        assert make.stats().available
        held.clear()
        with pytest.raises(InvalidRequestError, match="simplify it"):
            await ask(make, grammar=ambiguous(0))
        assert not held, "who asks again is told again, without a trial"

    asyncio.run(test())


def test_no_process_is_an_overload_that_shows_and_passes(
    make: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from octavo.confined import process

    async def test() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nonexistent")
            with pytest.raises(OverloadedError, match="try again later"):
                await ask(make, regex="a")
        assert not make.stats().available
        with pytest.raises(OverloadedError):  # nobody waits for another start
            await ask(make, regex="b")
        monkeypatch.setattr(process, "RETRY_S", 0.0)
        assert make.stats().available
        await ask(make, regex="c")

    asyncio.run(test())


def test_masks_that_take_long_end_their_own_rows_alone() -> None:
    """A grammar pays for its masks out of what it is given for each token; its neighbours do not."""
    from octavo.sampling.constraints import ConstraintError, full_mask
    from octavo.structured.grammar import CREDIT_S, MASK_S

    make = ConstraintCompiler(ByteTokenizer())
    wanted = [SamplingParams(structured_outputs=StructuredOutputsParams(regex=f"{c}*")) for c in "ab"]
    slow, other = (make.compile(params).constraints[0].start(()) for params in wanted)
    for _ in range(10):
        slow.allowance.spend(0.0)
    assert slow.allowance.left_s == CREDIT_S  # no more is saved up
    for _ in range(1 + int(CREDIT_S / (0.015 - MASK_S))):
        slow.allowance.spend(0.015)
    mask = full_mask(1, 260)[0]
    assert not slow.take(ord("a"))
    with pytest.raises(ConstraintError, match="takes too long"):
        slow.restrict(mask)
    with pytest.raises(ConstraintError):
        slow.fork().restrict(mask)
    other.restrict(mask)
    assert other.take(ord("b"))


def test_a_vocabulary_that_cannot_write_the_example_has_trials_too() -> None:
    """What warms a trial's process up is JSON; grammars need not be."""

    class NoBraces(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"x" if token_id in (0x7B, 0x7D) else super().token_bytes(token_id)

    made = ConstraintCompiler(NoBraces())
    try:
        wanted = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
        (constraint,) = asyncio.run(made.compile_async(wanted)).constraints
        assert accepts(constraint, "aa")
        assert made.stats().available
    finally:
        made.close()
