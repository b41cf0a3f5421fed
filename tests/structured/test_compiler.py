"""ConstraintCompiler.prepare: what the first grammar would wait for is made by whoever comes first."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.structured import ConstraintCompiler, compiler
from octavo.structured.grammar import KNOWN_BYTES, Grammar, _Wrapped
from support.grammars import ByteTokenizer, accepts, compiled

pytestmark = pytest.mark.usefixtures("no_clock")

PARAMS = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a-c]{2}"))


class Tables:
    """Counts how many tables are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.sliced = 0, 0
        real, counting = compiler.GrammarVocabulary, self

        class Counted(real):  # type: ignore[valid-type,misc]
            def __init__(self, *given: object, **named: object) -> None:
                counting.made += 1
                super().__init__(*given, **named)

            def add_slices(self) -> None:
                counting.sliced += 1
                super().add_slices()

        monkeypatch.setattr(compiler, "GrammarVocabulary", Counted)


@pytest.mark.parametrize("steps", [*range(8), 99])
def test_a_grammar_makes_what_preparing_has_left(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    tables, make = Tables(monkeypatch), ConstraintCompiler(ByteTokenizer())
    asked = 0

    def may_go_on() -> bool:
        nonlocal asked
        asked += 1
        return asked <= steps

    make.prepare(may_go_on)
    before = tables.made, tables.sliced
    assert before == (min(steps // 6, 1), min(steps // 7, 1))
    assert accepts(compiled(make, regex="[a-c]{2}"), "ab")
    assert (tables.made, tables.sliced) == (1, 1)
    make.prepare(lambda: pytest.fail("there is nothing left to do"))


def test_threads_that_come_together_make_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, make = Tables(monkeypatch), ConstraintCompiler(ByteTokenizer())
    start = threading.Barrier(5)

    def compile_one() -> None:
        start.wait()
        make.compile(PARAMS)

    def prepare() -> None:
        start.wait()
        make.prepare(lambda: True)

    threads = [threading.Thread(target=work) for work in (prepare, *[compile_one] * 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tables.made, tables.sliced) == (1, 1)


class Endless(ByteTokenizer):
    stop_token_ids = ()


def test_a_tokenizer_without_an_end_is_told_to_those_who_ask_not_to_the_server() -> None:
    make = ConstraintCompiler(Endless())
    make.prepare(lambda: True)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="no end token"):
            make.compile(PARAMS)
    make.prepare(lambda: True)


ENCODINGS: dict[str, Callable[[str], list[int]]] = {
    "exact": lambda text: list(text.encode()),
    "begins with a space": lambda text: list(f" {text}".encode()),
    "lower case": lambda text: list(text.lower().encode()),
    "drops quotes": lambda text: list(text.replace('"', "").encode()),
    "unknown": lambda text: [0] * len(text.encode()),
    "nothing": lambda text: [],
}


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ({"regex": "XY Z[ab]"}, "XY Za", "xy Za"),
        ({"choice": ["Xy", "Xz é"]}, "Xz é", " Xy"),
        ({"json": {"const": {"Abc": "Xyz"}}}, '{"Abc":"Xyz"}', '{"abc":"xyz"}'),
    ],
)
def test_what_a_grammar_forces_is_spelled_exactly_whatever_the_tokenizer_does(
    name: str, wanted: dict[str, Any], right: str, wrong: str
) -> None:
    """SentencePiece begins every text with a space, T5 changes characters: ids that spell something else."""
    tokenizer = ByteTokenizer()
    tokenizer.encode = lambda text, add_special_tokens=True: ENCODINGS[name](text)  # type: ignore[method-assign]
    constraint = compiled(ConstraintCompiler(tokenizer), **wanted)
    assert accepts(constraint, right)
    assert not accepts(constraint, wrong)


def test_behind_another_text_it_is_written_as_the_tokenizer_writes() -> None:
    """A tokenizer that begins with a space still says which of its tokens spell a text."""
    words = [b"", b"\n", b" ", b"a", b"b", b"ab", b"abc", b"c", b"bc"]

    def encode(text: str) -> list[int]:
        known = {b"a": 3, b"bc": 8, b"\n": 1, b" ": 2}
        return [known[part.encode()] for part in re.findall("a|bc|\n| ", f" {text}")]

    wrapped = _Wrapped(words, [0], 0, encode)
    assert wrapped("abc") == [3, 8]  # and not 6, the longest one
    assert wrapped(b"ab") == [5]
    assert wrapped("abz") == [5]


def test_short_texts_of_grammars_are_spelled_once() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [*text.encode()]

    wrapped = _Wrapped([bytes([byte]) for byte in range(256)], [], 0, encode)
    long = "x" * (KNOWN_BYTES + 1)
    for _ in range(3):
        assert wrapped(long[1:]) == [*long[1:].encode()]
        assert wrapped(long) == [*long.encode()]
    assert asked.count(long[1:]) == 1
    assert asked.count(long) == 3


@pytest.mark.parametrize("n", [1, 2])
def test_a_grammar_that_is_used_again_has_two_originals(n: int) -> None:
    """A first row of its own needs one; rows of several requests, or of one, are given both in turn."""
    make = ConstraintCompiler(ByteTokenizer())
    (first,) = make.compile(PARAMS.replace(n=n)).constraints
    assert isinstance(first, Grammar)
    assert first.is_wide is (n > 1)
    (again,) = make.compile(PARAMS).constraints
    assert again is first
    assert first.is_wide
    assert {first.start([]).original for _ in range(4)} == {0, 1}
    assert accepts(first, "ab")
    assert not accepts(first, "abc")


def test_nobody_waits_for_the_other_original(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(second_use(monkeypatch))


async def second_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for threads that it would keep: a crowd that uses the grammar leaves the event loop's free."""
    make, held, entered = ConstraintCompiler(ByteTokenizer()), threading.Event(), threading.Event()
    waited: list[bool] = []
    try:
        (first,) = (await make.compile_async(PARAMS)).constraints
        assert isinstance(first, Grammar)
        original = first._original

        def slow() -> Any:
            entered.set()
            waited.append(held.wait(60))
            return original()

        monkeypatch.setattr(first, "_original", slow)
        (again,) = (await make.compile_async(PARAMS)).constraints
        assert again is first
        assert not first.is_wide
        assert accepts(first, "ab")
        assert await asyncio.to_thread(entered.wait, 60)
        for _ in range(100):
            await make.compile_async(PARAMS)
        assert await asyncio.to_thread(lambda: waited == [])
        held.set()
        await asyncio.to_thread(first.widen)
        assert first.is_wide
    finally:
        held.set()
        make.close()
