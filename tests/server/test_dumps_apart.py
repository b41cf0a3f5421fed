"""openai/answers.py, dumps_apart: the same bytes as in one call, and no call that writes much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.params import Logprob, RequestOutput
from octavo.server.openai import answers
from octavo.server.openai.completion_logprobs import CompletionLogprobs
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from support.fake_engine import FakeTokenizer

PLACES = 300
TOP = {str(token): {"logprob": -0.5 * token, "rank": token, "decoded_token": "word"} for token in range(20)}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.integers(0, 3))
def test_the_same_bytes(value: Any, lists: int) -> None:
    assert answers.dumps_apart(value, lists) == answers.dumps(value)


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"index": i, "prompt_logprobs": [None, *[TOP] * PLACES]} for i in range(4)]},
        {
            "choices": [
                {"index": 0, "logprobs": {"content": [{"token": "a", "top_logprobs": [TOP]}] * PLACES}}
            ]
        },
        {"choices": [{"index": 0, "logprobs": {"top_logprobs": [None, *[TOP] * PLACES]}}]},
        {"data": [{"index": i, "embedding": [0.25] * 100} for i in range(PLACES)]},
    ],
    ids=["prompts", "chat", "completions", "embeddings"],
)
def test_no_call_writes_more_than_one_place(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder lets no other thread run: what it writes at once is what streams wait for."""
    sizes: list[int] = []
    whole = answers.dumps(answer)

    def dumps(value: Any) -> str:
        sizes.append(len(text := json_of(value)))
        return text

    json_of = answers.dumps
    monkeypatch.setattr(answers, "dumps", dumps)
    assert answers.dumps_apart(answer) == whole
    assert max(sizes) < 1500 < len(whole) / 10


def test_what_an_iterator_brings_is_written_before_it_brings_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the objects of a long list are never there all at a time."""
    made: list[int] = []
    seen: list[int] = []

    def places() -> Iterator[Any]:
        for number in range(PLACES):
            made.append(number)
            yield TOP

    def dumps(value: Any) -> str:
        if value is TOP:
            seen.append(len(made))
        return json_of(value)

    json_of = answers.dumps
    whole = answers.dumps({"choices": [{"logprobs": {"content": [TOP] * PLACES}}], "none": [], "data": [TOP]})
    monkeypatch.setattr(answers, "dumps", dumps)
    value = {"choices": [{"logprobs": {"content": places()}}], "none": iter(()), "data": iter([TOP])}
    assert answers.dumps_apart(value) == whole
    assert seen == [*range(1, PLACES + 1)]


def test_log_probabilities_are_made_one_place_at_a_time() -> None:
    """An answer may hold half a million: as objects all at once they take 180 MB."""
    tokenizer, made = FakeTokenizer(), list[int]()

    class Noted(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for number, place in enumerate(list.__iter__(self)):
                made.append(number)
                yield place

    place = {7: Logprob(-0.5, 1, "a"), 8: Logprob(-1.5, 2, "b")}
    known = Noted([place] * PLACES)
    output = RequestOutput("a", None, [7] * PLACES, [], True, prompt_logprobs=known)
    writer = CompletionLogprobs(tokenizer, 2, True)
    for lazy in (
        prompt_logprobs(output),
        chat_logprobs(tokenizer, [7] * PLACES, known, 2)["content"],
        writer.add([7] * PLACES, known)["top_logprobs"],
    ):
        made.clear()
        next(lazy)
        assert made == [0]
        assert len(list(lazy)) == PLACES - 1
