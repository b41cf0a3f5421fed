"""POST /v1/chat/completions: what comes back, streamed and whole, is what the engine said."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from octavo.params import BeamSearchParams
from support.asgi import post
from support.fake_engine import EOS, FakeEngine

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


def test_whole_answer_has_openai_shape(app: FastAPI, engine: FakeEngine) -> None:
    reply = post(app, PATH, {"model": "fake/model", "messages": HI})
    answer = reply.json()
    assert reply.status == 200
    assert reply.headers["x-request-id"] == answer["id"] == engine.calls[0].request_id
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "fake/model"
    assert answer["seed"] == 77
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    prompt = len("user:Hi\nassistant:")
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 6,  # the end of text is a token too
        "total_tokens": prompt + 6,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }


def test_every_field_reaches_sampling_params(app: FastAPI, engine: FakeEngine) -> None:
    fields: dict[str, Any] = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "repetition_penalty": 1.1,
        "seed": 5,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "min_tokens": 1,
        "max_tokens": 9,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    body = {"messages": HI, "stop": "x", "logit_bias": {"7": -3}, "priority": 4, "cache_salt": "s", **fields}
    assert post(app, PATH, body | {"user": "somebody"}).status == 200
    call = engine.calls[0]
    for name, value in fields.items():
        given = getattr(call.params, name)
        assert (list(given) if isinstance(value, list) else given) == value, name
    assert call.params.stop == ("x",)
    assert call.params.logit_bias == {7: -3.0}
    assert call.priority == 4
    assert call.cache_salt == "/s"


def test_without_max_tokens_the_answer_may_fill_the_context(app: FastAPI, engine: FakeEngine) -> None:
    post(app, PATH, {"messages": HI})
    post(app, PATH, {"messages": HI, "max_completion_tokens": 2})
    assert [call.params.max_tokens for call in engine.calls] == [None, 2]


def test_null_is_the_same_as_absent(app: FastAPI, engine: FakeEngine) -> None:
    nothing = dict.fromkeys(
        ["temperature", "n", "stop", "tools", "response_format", "stream_options", "seed"]
    )
    assert post(app, PATH, {"messages": HI, **nothing}).status == 200
    assert engine.calls[0].params.temperature == 1.0


@pytest.mark.parametrize(
    "neutral",
    [
        {"response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"best_of": 1},
        {"store": False, "service_tier": "auto"},
        {"stream": False, "echo": False},
    ],
)
def test_values_that_ask_for_nothing_are_let_through(app: FastAPI, neutral: dict[str, Any]) -> None:
    assert post(app, PATH, {"messages": HI, **neutral}).status == 200


def test_stream_concatenates_to_the_whole_answer(app: FastAPI) -> None:
    reply = post(app, PATH, {"messages": HI, "stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = reply.events()
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": "H"}
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta["content"] for delta in deltas) == "Hello"
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 5 + ["stop"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert {event["seed"] for event in events} == {77}
    assert all("usage" not in event for event in events)


def test_stream_arrives_step_by_step(app: FastAPI) -> None:
    reply = post(app, PATH, {"messages": HI, "stream": True})
    assert len(reply.parts) == 7  # one a step, and [DONE]


def test_characters_of_several_tokens_stay_whole(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = "né 🙂 \u2028"
    for event in post(app, PATH, {"messages": HI, "stream": True}).events():
        assert "\ufffd" not in event["choices"][0]["delta"]["content"]
    whole = post(app, PATH, {"messages": HI}).json()["choices"][0]["message"]["content"]
    assert whole == "né 🙂 \u2028"


def test_n_choices_interleave_by_index(app: FastAPI) -> None:
    body = {"messages": HI, "n": 3}
    whole = [choice["message"]["content"] for choice in post(app, PATH, body).json()["choices"]]
    texts = ["", "", ""]
    order: list[int] = []
    ends: list[int] = []
    for event in post(app, PATH, body | {"stream": True}).events():
        choice = event["choices"][0]
        order.append(choice["index"])
        texts[choice["index"]] += choice["delta"]["content"]
        if choice["finish_reason"]:
            ends.append(choice["index"])
    assert texts == whole == ["Hello", "Hello1", "Hello2"]
    assert order[:6] == [0, 1, 2, 0, 1, 2]
    assert sorted(ends) == [0, 1, 2]


def test_usage_comes_last_when_asked_for(app: FastAPI) -> None:
    body = {"messages": HI, "stream": True, "stream_options": {"include_usage": True}}
    *others, last = post(app, PATH, body).events()
    assert all(event["usage"] is None for event in others)
    assert last["choices"] == []
    assert last["usage"] == post(app, PATH, {"messages": HI}).json()["usage"]


def test_continuous_usage_counts_up(app: FastAPI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = post(app, PATH, {"messages": HI, "stream": True, "stream_options": options}).events()
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 4, 5, 6, 6]


def test_logprobs(app: FastAPI) -> None:
    body = {"messages": HI, "logprobs": True, "top_logprobs": 2, "max_tokens": 2}
    content = post(app, PATH, body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["H", "e"]
    assert content[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "a", "logprob": -1.5, "bytes": [97]},
        ],
    }
    streamed = [
        entry
        for event in post(app, PATH, body | {"stream": True}).events()
        for entry in event["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == content


def test_logprobs_without_top_report_the_drawn_token_alone(app: FastAPI, engine: FakeEngine) -> None:
    content = post(app, PATH, {"messages": HI, "logprobs": True}).json()["choices"][0]["logprobs"]["content"]
    assert engine.calls[0].params.logprobs == 0
    assert content[0]["top_logprobs"] == []


def test_token_ids_are_returned_when_asked_for(app: FastAPI) -> None:
    body = {"messages": HI, "return_token_ids": True}
    answer = post(app, PATH, body).json()
    assert answer["prompt_token_ids"] == list(b"user:Hi\nassistant:")
    assert answer["choices"][0]["token_ids"] == [*b"Hello", EOS]
    events = post(app, PATH, body | {"stream": True}).events()
    assert events[0]["choices"][0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [t for event in events for t in event["choices"][0]["token_ids"]] == [*b"Hello", EOS]


def test_the_template_gets_what_was_asked(app: FastAPI, engine: FakeEngine) -> None:
    post(app, PATH, {"messages": HI})
    post(app, PATH, {"messages": HI, "add_generation_prompt": False})
    post(app, PATH, {"messages": HI, "continue_final_message": True})
    post(app, PATH, {"messages": HI, "chat_template_kwargs": {"enable_thinking": False, "size": 1}})
    assert [(call["add"], call["continue"]) for call in engine.rendered] == [
        (True, False),
        (False, False),
        (False, True),
        (True, False),
    ]
    assert engine.rendered[-1]["kwargs"] == {"enable_thinking": False, "size": 1}


def test_content_may_come_in_parts(app: FastAPI, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    post(app, PATH, {"messages": [{"role": "user", "content": parts}], "return_token_ids": True})
    assert bytes(engine.calls[0].prompt) == b"user:a\nb\nassistant:"


def test_a_beam_search_has_n_beams(app: FastAPI, engine: FakeEngine) -> None:
    ask = {"use_beam_search": True, "n": 3, "max_tokens": 7, "length_penalty": 0.0, "early_stopping": True}
    answer = post(app, PATH, {"messages": HI, **ask}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    wanted = BeamSearchParams(3, 7, length_penalty=0.0, early_stopping=True)
    assert engine.calls[0].params.beam_search == wanted
