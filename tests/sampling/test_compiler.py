"""ConstraintCompiler.prepare: what the first grammar would wait for is made by whoever comes first."""

from __future__ import annotations

import threading

import pytest

from octavo.errors import InvalidRequestError
from octavo.params import SamplingParams, StructuredOutputsParams
from octavo.sampling import ConstraintCompiler, compiler
from support.grammars import ByteTokenizer, accepts, compiled

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


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 99])
def test_a_grammar_makes_what_preparing_has_left(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    tables, make = Tables(monkeypatch), ConstraintCompiler(ByteTokenizer())
    asked = 0

    def may_go_on() -> bool:
        nonlocal asked
        asked += 1
        return asked <= steps

    make.prepare(may_go_on)
    before = tables.made, tables.sliced
    assert before == (min(steps // 4, 1), min(steps // 5, 1))
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
