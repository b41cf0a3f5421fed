"""What requests ask of speculative decoding, and what answers and counters say of it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from octavo.engine.stats import DraftCounts
from octavo.errors import InvalidRequestError
from octavo.params.speculative import MAX_PREDICTION, SpeculativeParams
from support.asgi import get, post
from support.fake_engine import FakeEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, TEXT: {"prompt": "Hi"}}
CONTENT = {"type": "content", "content": "Hello"}


@pytest.mark.parametrize("path", BODIES)
def test_a_request_names_its_number_and_what_it_expects(app: FastAPI, engine: FakeEngine, path: str) -> None:
    body = {**BODIES[path], "speculative": {"k": 3}, "prediction": CONTENT}
    assert post(app, path, body).status == 200
    assert SpeculativeParams.of(engine.calls[0].params.speculative) == SpeculativeParams(3, "Hello")


@pytest.mark.parametrize("path", BODIES)
def test_who_asks_for_nothing_says_nothing(app: FastAPI, engine: FakeEngine, path: str) -> None:
    answer = post(app, path, {**BODIES[path], "speculative": None, "prediction": None}).json()
    assert engine.calls[0].params.speculative is None
    assert "completion_tokens_details" not in answer["usage"]


@pytest.mark.parametrize("path", BODIES)
def test_usage_tells_what_was_drafted(app: FastAPI, engine: FakeEngine, path: str) -> None:
    engine.drafted = 4, 2
    details = {"accepted_prediction_tokens": 4, "rejected_prediction_tokens": 2}
    answer = post(app, path, BODIES[path]).json()
    assert answer["usage"]["completion_tokens_details"] == details
    body = {**BODIES[path], "stream": True, "stream_options": {"include_usage": True}}
    assert post(app, path, body).events()[-1]["usage"]["completion_tokens_details"] == details


def test_usage_of_several_prompts_is_added_up(app: FastAPI, engine: FakeEngine) -> None:
    engine.drafted = 4, 2
    usage = post(app, TEXT, {"prompt": ["a", "b"]}).json()["usage"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 8


def test_counters_have_vllms_names(app: FastAPI, engine: FakeEngine) -> None:
    engine.counts.drafts = DraftCounts(7, 20, 9, [6, 3])
    text = get(app, "/metrics").body.decode()
    labels = 'engine="0",model_name="fake/model"'
    for name, value in (("drafts", 7), ("draft_tokens", 20), ("accepted_tokens", 9)):
        assert f"vllm:spec_decode_num_{name}_total{{{labels}}} {value}.0" in text
    for place, value in enumerate((6, 3)):
        each = f'{labels},position="{place}"'
        assert f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{each}}} {value}.0" in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "must be an object such as"),
        ({"k": -1}, "speculative.k must be an integer from 0 to 64"),
        ({"k": True}, "speculative.k must be an integer"),
        ({"k": 1.5}, "speculative.k must be an integer"),
        ({"n": 1}, r"unknown field speculative\.n"),
        (
            {"prediction": {"type": "text", "content": "a"}},
            "must be an object with type .content. and content, and nothing else",
        ),
        (
            {"prediction": {"type": "content"}},
            "must be an object with type .content. and content, and nothing else",
        ),
        ({"prediction": {"type": "content", "content": 5}}, "needs content"),
        ({"prediction": {"type": "content", "content": [{"type": "image"}]}}, "needs content"),
        (
            {"prediction": {"type": "content", "content": "a", "more": 1}},
            "must be an object with type .content. and content, and nothing else",
        ),
        ({"prediction": [1, -2]}, "must be text or token ids"),
        ({"prediction": [True]}, "must be text or token ids"),
        ({"prediction": [1.5]}, "must be text or token ids"),
        ({"prediction": [2**31]}, "must be text or token ids"),
        ({"prediction": "a" * (MAX_PREDICTION + 1)}, f"takes at most {MAX_PREDICTION}"),
    ],
)
def test_what_is_wrong_is_named(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        SpeculativeParams.of(given)
    assert caught.value.param in ("speculative", "prediction")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, SpeculativeParams()),
        ({"k": 0}, SpeculativeParams(0)),
        ({"k": 4.0, "prediction": [3.0, 2**31 - 1]}, SpeculativeParams(4, (3, 2**31 - 1))),
        ({"k": None, "prediction": (3, 4)}, SpeculativeParams(None, (3, 4))),
        ({"prediction": {"type": "content", "content": [{"type": "text", "text": "a"}] * 2}},
         SpeculativeParams(None, "aa")),
    ],
)  # fmt: skip
def test_what_is_right_is_taken(given: Any, wanted: SpeculativeParams) -> None:
    found = SpeculativeParams.of(given)
    assert found == wanted
    assert found.ids == (wanted.prediction if isinstance(wanted.prediction, tuple) else ())
