"""Anthropic's messages and count_tokens: anthropic's typed parameters, statuses of its API reference."""

from __future__ import annotations

from typing import Any

from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

from support.shapes import ABSENT, MODEL, SCHEMA, Fields, Table
from support.shapes.chat import PERSON

HEADERS = {"user-agent": "Anthropic/Python 2.11.0", "anthropic-version": "2023-06-01"}
USER: Fields = {"role": "user", "content": "Hi"}
CACHED: Fields = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CALL: Fields = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
RESULT: Fields = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}


def say(*messages: Fields, **more: Any) -> Fields:
    return {"messages": list(messages), **more}


def heard(*blocks: Fields) -> Fields:
    return {"role": "user", "content": list(blocks)}


def said(*blocks: Fields) -> Fields:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str, **more: Any) -> Fields:
    return {"type": "text", "text": words, **more}


def tool(name: str, schema: Any = None, **more: Any) -> Fields:
    return {"name": name, "input_schema": schema or {"type": "object"}, **more}


def offered(choice: Any, **more: Any) -> Fields:
    return {"tools": [WEATHER, tool("now")], "tool_choice": choice, **more}


WEATHER = tool("weather", SCHEMA, description="Of a city")
THOUGHT: Fields = {"type": "thinking", "thinking": "Hm", "signature": "x"}
PLAIN: list[Fields] = [
    {}, {"max_tokens": 1}, {"max_tokens": 32_000}, {"system": "Be brief."}, {"system": [text("Be"),
    text("brief.")]},
    {"system": [text("Be brief.", **CACHED)]}, {"system": []}, {"stop_sequences": ["lo"]},
    {"stop_sequences": []},
    {"metadata": {"user_id": "somebody"}}, {"metadata": {"user_id": None}}, {"service_tier": "auto"},
    {"service_tier": "standard_only"}, {"speed": "fast"}, {"speed": None}, {"inference_geo": "us"},
    {"cache_control": {"type": "ephemeral"}}, {"cache_control": None}, {"container": None},
    {"diagnostics": {"previous_message_id": None}}, {"diagnostics": {"previous_message_id": "msg_1"}},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
    {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive", "display": "omitted"}},
    {"output_config": {"effort": "high"}}, {"output_config": {"effort": "max", "format": None}},
    {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    {"output_config": {"format": {"type": "json_schema", "schema": PERSON}, "effort": "low"}},
    {"output_config": {}},
    {"stream": True, "stop_sequences": ["x", "y"]}, {"stream": True, "max_tokens": 2},
]  # fmt: skip
TALK: list[Fields] = [
    say(heard(text("Hi"))), say(heard(text("a"), text("b"))), say(heard(text("Hi", **CACHED))),
    say(USER, USER),
    say(USER, {"role": "assistant", "content": "Hello"}, USER), say(USER, said(text("Hello")), USER),
    say(USER, said(text("Hello", citations=None)), USER), say(USER, said(THOUGHT, text("Hello")), USER),
    say(USER, said({"type": "redacted_thinking", "data": "x"}, text("Hello")), USER),
    say(USER, {"role": "assistant", "content": "Well,"}), say(USER, said(text("Well,"))),
    say(USER, {"role": "system", "content": "Be brief."}, USER, system="Be kind."),
    say(USER, said(CALL), heard(RESULT)), say(USER, said(text("Let me see."), CALL), heard(RESULT)),
    say(USER, said(THOUGHT, CALL), heard(RESULT)), say(USER, said({**CALL, "input": {}}), heard(RESULT)),
    say(USER, said({**CALL, "caller": {"type": "direct"}}), heard(RESULT)),
    say(USER, said({**CALL, **CACHED}), heard({**RESULT, **CACHED})),
    say(USER, said(CALL), heard({**RESULT, "content": [text("sun"), text("ny")]})),
    say(USER, said(CALL), heard({**RESULT, "is_error": True, "content": "no such city"})),
    say(USER, said(CALL), heard({"type": "tool_result", "tool_use_id": "toolu_1"})),
    say(USER, said(CALL), heard(RESULT, text("And tomorrow?"))),
    say(USER, said(CALL, {**CALL, "id": "toolu_2"}), heard(RESULT, {**RESULT, "tool_use_id": "toolu_2"})),
    say(USER, said(CALL), heard(RESULT), said(text("Sunny.")), USER, tools=[WEATHER]),
    say(*[USER, said(text("A"))] * 20, USER),
]  # fmt: skip
TOOLS: list[Fields] = [
    {"tools": [WEATHER]}, {"tools": [tool("now")]}, {"tools": []}, {"tools": [WEATHER, tool("now")]},
    {"tools": [tool("make", PERSON)]}, {"tools": [tool("w", SCHEMA, type="custom")]},
    {"tools": [tool("w", SCHEMA, strict=True)]}, {"tools": [tool("w", SCHEMA, **CACHED)]},
    {"tools": [tool("w", SCHEMA, input_examples=[{"city": "Paris"}])]},
    {"tools": [tool("w", SCHEMA, eager_input_streaming=True)]},
    {"tools": [tool("w", SCHEMA, defer_loading=True), WEATHER]},
    {"tools": [tool("w", SCHEMA, allowed_callers=["direct"])]},
    {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]},
    {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}, WEATHER]},
    {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
    {"tools": [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}, WEATHER]},
    offered({"type": "auto"}), offered({"type": "any"}), offered({"type": "none"}),
    offered({"type": "tool", "name": "weather"}),
    offered({"type": "auto", "disable_parallel_tool_use": True}),
    offered({"type": "any", "disable_parallel_tool_use": True}),
    offered({"type": "tool", "name": "now", "disable_parallel_tool_use": False}), offered({"type": "any"},
    stream=True, max_tokens=4),
]  # fmt: skip
WRONG: list[tuple[Fields, int, str | None]] = [
    ({name: wrong}, 400, name)
    for name, wrong in {
        "max_tokens": "5", "messages": "Hi", "model": 5, "system": 5, "stop_sequences": "lo", "stream": "yes",
        "tools": {}, "tool_choice": "auto", "metadata": "me", "thinking": True, "output_config": "high",
        "service_tier": 5, "cache_control": "ephemeral", "diagnostics": "on", "speed": 2, "inference_geo": 5,
        "max_output_tokens": 5, "temprature": 1,
    }.items()
]  # fmt: skip
INSIDE: list[tuple[Fields, int, str | None]] = [
    ({"max_tokens": ABSENT}, 400, "max_tokens"), ({"messages": ABSENT}, 400, "messages"), ({"messages": []},
    400, "messages"),
    ({"max_tokens": -1}, 400, "max_tokens"), ({"temperature": -0.5}, 400, "temperature"), ({"top_p": 1.5},
    400, "top_p"),
    ({"temperature": "hot"}, 400, "temperature"), ({"top_k": -5}, 400, "top_k"), ({"stop_sequences": [5]},
    400, "stop_sequences"),
    (say({"role": "robot", "content": "x"}), 400, "messages"), (say({"role": "user"}), 400, "messages"),
    (say({"role": "system", "content": "Be brief."}, USER), 400, "messages"), (say(heard()), 400, "messages"),
    (say({"role": "user", "content": 5}), 400, "messages"), (say(heard({"type": "text"})), 400, "messages"),
    (say(heard({"type": "dance"})), 400, "messages"), (say({**USER, "mood": "good"}), 400, "messages"),
    (say(heard(text("Hi", mood="good"))), 400, "messages"), (say(heard(CALL)), 400, "messages"),
    (say(USER, said(RESULT)), 400, "messages"), (say(heard(RESULT)), 400, "messages"),
    (say(USER, said(text("a")), heard(RESULT)), 400, "messages"),
    (say(USER, said(CALL), heard({**RESULT, "tool_use_id": "toolu_9"})), 400, "messages"),
    (say(USER, said(CALL), heard({"type": "tool_result", "content": "sunny"})), 400, "messages"),
    ({"tools": [{"name": "x"}]}, 400, "tools"), ({"tools": [tool("two words")]}, 400, "tools"),
    ({"tools": [tool("x" * 129)]}, 400, "tools"),
    ({"tools": [WEATHER, WEATHER]}, 400, "tools"), ({"tools": [tool("x", color="red")]}, 400, "tools"),
    ({"tools": [tool("x", [1])]}, 400, "tools"),
    (offered({"type": "maybe"}), 400, "tool_choice"), (offered({"type": "tool", "name": "walk"}),
    400, "tool_choice"),
    (offered({"type": "tool"}), 400, "tool_choice"), ({"tool_choice": {"type": "any"}}, 400, "tool_choice"),
    ({"output_config": {"format": {"type": "xml"}}}, 400, "output_config"),
    ({"output_config": {"effort": 5}}, 400, "output_config"),
    ({"model": "claude-opus-5"}, 404, None), ({"model": "claude-opus-5", "stream": True}, 404, None),
]  # fmt: skip
IMAGE: Fields = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DOCUMENT: Fields = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "A text."},
}
FOUND: Fields = {"type": "search_result", "source": "a", "title": "A", "content": [text("A text.")]}
OTHERWISE: list[tuple[Fields, int, int, str]] = [
    (say(heard(IMAGE, text("What is it?"))), 200, 400, "models read text alone"),
    (say(heard(DOCUMENT, text("What is it?"))), 200, 400, "put its text into the message"),
    (say(heard(FOUND, text("What is it?"))), 200, 400, "put its text into the message"),
    (say(USER, said(CALL), heard({**RESULT, "content": [IMAGE]})), 200, 400, "models read text alone"),
    ({"max_tokens": 0}, 200, 400, "the service fills its cache; an answer here has a token"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 200, 400, "only its own models know the tool"),
    ({"container": "c_1"}, 200, 400, "nothing is run here"),
    ({"temperature": 1.5}, 400, 200, "OpenAI's range is 2"),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, 400, 200, "thinking is without effect"),
]  # fmt: skip

MESSAGES = Table(
    client="anthropic-python messages",
    path="/v1/messages",
    reads="anthropic",
    base={"model": MODEL, "max_tokens": 64, "messages": [USER]},
    taken=[*PLAIN, *TALK, *TOOLS],
    refused=[*WRONG, *INSIDE],
    otherwise=OTHERWISE,
    params=MessageCreateParamsNonStreaming,
    headers=HEADERS,
)
COUNT = Table(
    client="anthropic-python count_tokens",
    path="/v1/messages/count_tokens",
    reads="anthropic tokens",
    base={"model": MODEL, "messages": [USER]},
    taken=[
        {}, {"system": "Be brief."}, {"tools": [WEATHER]}, say(USER, said(CALL), heard(RESULT),
    tools=[WEATHER]),
        {"thinking": {"type": "adaptive"}}, offered({"type": "any"}),
    {"system": [text("Be brief.", **CACHED)]},
        {"output_config": {"effort": "low"}}, {"cache_control": {"type": "ephemeral"}}, {"speed": "standard"},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, say(USER, said(text("Well,"))),
    ],
    refused=[
        ({"messages": []}, 400, "messages"), ({"messages": ABSENT}, 400, "messages"), (say(heard(RESULT)),
    400, "messages"),
        ({"tools": [WEATHER, WEATHER]}, 400, "tools"), ({"system": 5}, 400, "system"),
    ({"model": "claude-opus-5"}, 404, None),
    ],
    params=MessageCountTokensParams,
    streams=False,
    headers=HEADERS,
)  # fmt: skip
