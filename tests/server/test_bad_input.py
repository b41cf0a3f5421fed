"""Whatever is wrong is a 4xx that names the field; nothing is ignored, nothing is a 500."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.app import create_app
from octavo.server.field_tables import LISTS
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.completions import CompletionRequest
from support.asgi import call, get, post
from support.fake_engine import FakeEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]

BAD_SHARED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 0}, "max_tokens", "from 1"),
    ({"max_tokens": -5}, "max_tokens", "from 1"),
    ({"max_tokens": "5"}, "max_tokens", "must be an integer, not a string"),
    ({"max_tokens": 2.5}, "max_tokens", "must be an integer, not a number"),
    ({"max_tokens": True}, "max_tokens", "must be an integer, not a boolean"),
    ({"max_tokens": 10**30}, "max_tokens", "from 1"),
    ({"n": 0}, "n", "from 1 to 128"),
    ({"n": 10**6}, "n", "from 1 to 128"),
    ({"temperature": -0.1}, "temperature", "at least 0"),
    ({"temperature": "hot"}, "temperature", "must be a number"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.5}, "top_p", "at most 1"),
    ({"top_k": -2}, "top_k", "from 0"),
    ({"min_p": 2}, "min_p", "at most 1"),
    ({"presence_penalty": 3}, "presence_penalty", "at most 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "at least -2"),
    ({"repetition_penalty": 1e-320}, "repetition_penalty", "at least 0.01"),
    ({"seed": 1 << 64}, "seed", "integer from"),
    ({"min_tokens": 5, "max_tokens": 2}, "min_tokens", "above max_tokens"),
    ({"stop": 3}, "stop", "a string or a list of strings"),
    ({"stop": ["a", 3]}, "stop", "a string or a list of strings"),
    ({"stop": ["a"] * 1000}, "stop", "at most"),
    ({"stop": [""]}, "stop", "non-empty"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids", "stop_token_ids[0] must be an integer"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token ids"),
    ({"stop_token_ids": [3, 257]}, "stop_token_ids", "token 257"),
    ({"logit_bias": [1]}, "logit_bias", "must be an object"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"0260": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "-100 to 100"),
    ({"logit_bias": {"257": 1}}, "logit_bias", "token 257"),
    ({"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias", "at most"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
    ({"stream": True, "stream_options": 5}, "stream_options", "must be an object"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options",
        "continuous_usage_stats needs include_usage",
    ),
    ({"stream": True, "stream_options": {"x": 5}}, "stream_options", "unknown field 'stream_options.x'"),
    ({"priority": "high"}, "priority", "an integer"),
    ({"user": 3}, "user", "a string"),
    ({"tempereture": 1}, "tempereture", "did you mean 'temperature'?"),
    ({"x" * 1000: 1}, "x" * 64, "unknown field"),
    ({"bad_words": [""]}, "bad_words", "1 to 256 characters"),
    ({"bad_words": 5}, "bad_words", "list of strings"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "at least one"),
    ({"allowed_token_ids": [257]}, "allowed_token_ids", "token 257"),
    ({"allowed_token_ids": ["a"]}, "allowed_token_ids", "an integer"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "from 1"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "from 0 to 20"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream: false"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"x": 1}}, "structured_outputs", "unknown field"),
    ({"structured_outputs": {"regex": "(["}}, "structured_outputs", "structured_outputs"),
    ({"guided_regex": "(["}, "guided_regex", "guided_regex"),
    ({"guided_json": {"pattern": 5}}, "guided_json", "pattern"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "exclude each other"),
    ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", "contradicts"),
    ({"guided_choice": ["a"], "min_tokens": 2}, "min_tokens", "contradicts"),
    ({"response_format": 5}, "response_format", "type must be"),
    ({"response_format": {"type": "xml"}}, "response_format", "type must be"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "with a schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, "response_format", "object"),
    ({"response_format": {"type": "json_object", "x": 1}}, "response_format", "response_format.x"),
]
TOOL = {"type": "function", "function": {"name": "f"}}
BAD_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"use_beam_search": True, "stream": True}, "use_beam_search", "stream: false"),
    ({"length_penalty": 0.5}, "length_penalty", "needs use_beam_search"),
    ({"messages": []}, "messages", "non-empty"),
    ({"messages": "Hi"}, "messages", "must be a list"),
    ({"messages": [5]}, "messages", "messages[0]"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages", "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image_url"),
    ({"messages": None}, "messages", "is required"),
    ({"messages": [{**HI[0], "contnt": "x"}]}, "messages", "unknown field messages[0].contnt"),
    ({"messages": [{**HI[0], "audio": {"id": "a"}}]}, "messages", "unknown field messages[0].audio"),
    ({"messages": [{**HI[0], "name": 5}]}, "messages", "messages[0].name must be a string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
        "messages",
        "unknown field messages[0].content[0].x",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "x": 1}}]}]},
        "messages",
        "unknown field messages[0].tool_calls[0].function.x",
    ),
    (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}
            ]
        },
        "messages",
        "must be a JSON object",
    ),
    ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"logprobs": 5}, "logprobs", "true or false"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "differ"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "from 1"),
    ({"tools": [{"type": "function"}]}, "tools", "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"best_of": 3}, "best_of", "not supported yet"),
    ({"best_of": "x"}, "best_of", "the same integer as n"),
    ({"best_of": True}, "best_of", "the same integer as n"),
    ({"best_of": 1.0}, "best_of", "the same integer as n"),
    ({"tools": [{**TOOL, "bogus": 1}]}, "tools", "unknown field tools[0].bogus"),
    ({"tools": [{"type": "function", "function": {"name": "f", "bogus": 1}}]}, "tools",
     "unknown field tools[0].function.bogus"),
    ({"tools": [TOOL], "tool_choice": {**TOOL, "bogus": 1}}, "tool_choice", "tool_choice.bogus"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
     "tool_choice", "tool_choice.function.x"),
    ({"early_stopping": -1}, "early_stopping",
     "early_stopping must be true or false or 'never', not an integer"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs",
     "structured_outputs.json must be an object or a string or true or false, not an integer"),
    ({"chat_template": "{{ 1 }}"}, "chat_template", "--chat-template"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "'messages'"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "exclude"),
    ({"chat_template_kwargs": 1}, "chat_template_kwargs", "must be an object"),
    ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages", "context length is 128 tokens"),
]  # fmt: skip
BAD_TEXT: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "is empty"),
    ({"prompt": []}, "prompt", "must be a string"),
    ({"prompt": [[]]}, "prompt", "is empty"),
    ({"prompt": [1, "a"]}, "prompt", "must be a string"),
    ({"prompt": [-1]}, "prompt", "must be a string"),
    ({"prompt": [True]}, "prompt", "must be a string"),
    ({"prompt": {"a": 1}}, "prompt", "must be a string"),
    ({"prompt": [257]}, "prompt", "no token 257"),
    ({"prompt": ["a"] * 300}, "prompt", "at most 256"),
    ({"prompt": ["a"] * 129, "n": 4}, "n", "129 prompts x n 4 is more than the 512 completions"),
    ({"prompt": "x" * 128}, "prompt", "128 tokens, and an answer takes at least one more"),
    ({"prompt": None}, "prompt", "is required"),
    ({"logprobs": 21}, "logprobs", "from 0 to 20"),
    ({"logprobs": True}, "logprobs", "an integer"),
    ({"echo": True, "logprobs": 1, "stream": True, "n": 2}, "echo", "needs n: 1"),
    ({"best_of": 1, "n": 2}, "best_of", "below n"),
    ({"use_beam_search": True, "n": 11}, "n", "above 10 beams"),
    ({"use_beam_search": True, "best_of": 11}, "best_of", "above 10 beams"),
    ({"use_beam_search": True, "stream": True}, "use_beam_search", "stream: false"),
    ({"use_beam_search": True, "temperature": 0.5}, "temperature", "beam search"),
    ({"use_beam_search": True, "stop": ["a"]}, "stop", "beam search"),
    ({"use_beam_search": True, "seed": 5}, "seed", "beam search"),
    ({"use_beam_search": True, "echo": True, "logprobs": 1}, "prompt_logprobs", "beam search"),
    ({"use_beam_search": True, "length_penalty": 99.0}, "length_penalty", "at most 10"),
    ({"use_beam_search": True, "early_stopping": "often"}, "early_stopping", "early_stopping"),
    ({"length_penalty": 2.0}, "length_penalty", "needs use_beam_search"),
    ({"early_stopping": True}, "early_stopping", "needs use_beam_search"),
    ({"best_of": 2, "stream": True}, "best_of", "stream: false"),
    ({"best_of": 1000}, "best_of", "at most 128"),
    ({"max_tokens": -1}, "max_tokens", "not -1"),
    ({"max_tokens": 0, "echo": True, "stream": True}, "max_tokens", "stream: false"),
    ({"suffix": "x"}, "suffix", "not supported"),
    ({"max_completion_tokens": 3}, "max_completion_tokens", "unknown field"),
]


def check(app: FastAPI, path: str, body: dict[str, Any], param: str, text: str) -> None:
    reply = post(app, path, body)
    assert reply.status == 400, reply.body
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert reply.error["param"] == param
    assert text in reply.error["message"]
    assert "\n" not in reply.error["message"]
    assert len(reply.error["message"]) <= 500


@pytest.mark.parametrize(("fields", "param", "text"), BAD_SHARED + BAD_CHAT, ids=lambda v: str(v)[:40])
def test_chat(app: FastAPI, fields: dict[str, Any], param: str, text: str) -> None:
    check(app, CHAT, {"messages": HI, **fields}, param, text)


@pytest.mark.parametrize(("fields", "param", "text"), BAD_CHAT, ids=lambda v: str(v)[:40])
def test_chat_streamed(app: FastAPI, fields: dict[str, Any], param: str, text: str) -> None:
    check(app, CHAT, {"messages": HI, "stream": True, **fields}, param, text)


@pytest.mark.parametrize(("fields", "param", "text"), BAD_SHARED + BAD_TEXT, ids=lambda v: str(v)[:40])
def test_completions(app: FastAPI, fields: dict[str, Any], param: str, text: str) -> None:
    check(app, TEXT, {"prompt": "a", **fields}, param, text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"temperature": NaN, "messages": []}', "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b"[]", "must be a JSON object, not a list"),
        (b"null", "must be a JSON object, not null"),
        (b'"x"', "must be a JSON object, not a string"),
    ],
)
def test_bodies_that_are_no_request(app: FastAPI, body: bytes, text: str) -> None:
    reply = post(app, CHAT, body)
    assert reply.status == 400
    assert text in reply.error["message"]


RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
FLAT: dict[str, Any] = {"type": "function", "name": "f"}
THEIRS: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        (RESPONSES, {"tools": [{**FLAT, "bogus": 1}]}, "unknown field tools[0].bogus"),
        (RESPONSES, {"tools": [FLAT], "tool_choice": {**FLAT, "bogus": 1}}, "tool_choice.bogus"),
        (RESPONSES, {"text": {"format": {"type": "nope"}}}, "text.format.type must be text"),
        (RESPONSES, {"text": {"format": 5}}, "text.format.type must be text"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format must be"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {}, "x": 1}}}, "text.format.x"),
        (MESSAGES, {"tools": [{**THEIRS, "bogus": 1}]}, "unknown field tools[0].bogus"),
        (MESSAGES, {"tools": [{**THEIRS, "description": 5}]}, "description is of the wrong type"),
        (MESSAGES, {"tools": [THEIRS], "tool_choice": {"type": "auto", "bogus": 1}}, "tool_choice.bogus"),
        (MESSAGES, {"tools": [THEIRS], "tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name"),
        (MESSAGES, {"tools": [THEIRS], "tool_choice": {"type": [HI[0]]}}, "tool_choice.type must be"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": [1]}]}]}, "messages[0].content[0]"),
        (MESSAGES, {"tools": [THEIRS], "tool_choice": {"type": "any", "disable_parallel_tool_use": 1}},
         "disable_parallel_tool_use must be true or false"),
        (MESSAGES, {"system": 5}, "system must be a string or a list, not an integer"),
    ],
)  # fmt: skip
def test_inside_of_fields(app: FastAPI, path: str, fields: dict[str, Any], text: str) -> None:
    hi = {"input": "Hi"} if path == RESPONSES else {"messages": HI, "max_tokens": 4}
    reply = post(app, path, {**hi, **fields})
    assert (reply.status, "\n" in reply.error["message"]) == (400, False), reply.body
    assert text in reply.error["message"]


def test_lone_surrogates_do_not_break_the_answer(app: FastAPI) -> None:
    assert post(app, TEXT, b'{"prompt": "\\ud800"}').status == 400


def test_numbers_too_large_for_floats(app: FastAPI) -> None:
    assert post(app, TEXT, b'{"prompt": "a", "temperature": 1e999}').status == 400


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/models/gpt-4", "/tokenize"])
def test_unknown_model_is_404(app: FastAPI, path: str) -> None:
    body = {"model": "gpt-4", "messages": HI} if path == CHAT else {"model": "gpt-4", "prompt": "a"}
    reply = get(app, path) if "models" in path else post(app, path, body)
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"
    assert "fake/model" in reply.error["message"]


def test_integers_may_be_written_as_8_0(app: FastAPI, engine: FakeEngine) -> None:
    assert post(app, CHAT, {"messages": HI, "max_tokens": 8.0, "stop_token_ids": [2.0]}).status == 200
    params = engine.calls[0].params
    assert (params.max_tokens, params.stop_token_ids) == (8, (2,))
    assert [type(params.max_tokens), type(params.stop_token_ids[0])] == [int, int]


def test_what_clients_send_in_messages_is_taken(app: FastAPI) -> None:
    answer = {
        "role": "assistant", "content": "Hi", "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": None, "reasoning_content": "Hm", "reasoning": "Hm", "name": "a",
    }  # fmt: skip
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "5"}
    assert post(app, CHAT, {"messages": [*HI, answer, *HI, calls, result]}).status == 200


def test_paths_and_methods(app: FastAPI) -> None:
    assert post(app, f"{CHAT}/", {"messages": HI}).status == 200
    assert get(app, "/health/").status == get(app, "/v1/models/fake/model/").status == 200
    assert asyncio.run(call(app, "HEAD", "/health")).status == 200
    assert asyncio.run(call(app, "HEAD", CHAT)).status == 405
    assert post(app, "/v1/nothing", {}).status == 404
    assert "no path" in post(app, "/v1/nothing", {}).error["message"]
    reply = get(app, CHAT)
    assert reply.status == 405
    assert reply.headers["allow"] == "POST"
    assert "does not take GET" in reply.error["message"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
LISTED = {name for lists in LISTS.values() for name in (*lists.stands, *lists.ignored, *lists.refused)}
NAMES = st.sampled_from(sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *LISTED}))


@settings(max_examples=25)  # tests/test_fuzz.py tries thousands
@given(path=st.sampled_from([CHAT, TEXT, "/tokenize", "/detokenize"]), body=st.dictionaries(NAMES, VALUES))
def test_anything_is_answered_and_never_a_500(path: str, body: dict[str, Any]) -> None:
    reply = post(create_app(FakeEngine()), path, body)
    assert reply.complete
    assert reply.status in (200, 400, 404), reply.body
