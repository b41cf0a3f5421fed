"""openai/answers.py, dumps_apart: the same bytes as in one call, and no call that writes much."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.openai import answers

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
