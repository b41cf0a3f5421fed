"""OpenAI's chat completions, as openai's completion_create_params has them; statuses of its API reference."""

from __future__ import annotations

from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from support.shapes import ABSENT, MODEL, SCHEMA, Fields, Table

USER: Fields = {"role": "user", "content": "Hi"}
CALL: Fields = {
    "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
}  # fmt: skip
NOW: Fields = {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}}
RESULT: Fields = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
BREAK: Fields = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}


def function(name: str, **more: Any) -> Fields:
    return {"type": "function", "function": {"name": name, **more}}


def say(*messages: Fields) -> Fields:
    return {"messages": list(messages)}


def called(*calls: Fields, content: Any = None, **more: Any) -> Fields:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def answer(content: Any, **more: Any) -> Fields:
    return {"role": "assistant", "content": content, **more}


def part(text: str, **more: Any) -> Fields:
    return {"type": "text", "text": text, **more}


def shaped(schema: Any, **more: Any) -> Fields:
    inner = {"name": "answer", "schema": schema, **more}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


def with_tools(*tools: Fields, **more: Any) -> Fields:
    return {"tools": list(tools), **more}


def offered(choice: Any, **more: Any) -> Fields:
    return with_tools(WEATHER, function("now"), tool_choice=choice, **more)


WEATHER = function("weather", description="Of a city", parameters=SCHEMA)
STRICT = function("weather", parameters=SCHEMA, strict=True)
ALLOWED: Fields = {"mode": "auto", "tools": [function("weather")]}
PERSON: Fields = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": ["integer", "null"]},
        "kind": {"enum": ["a", "b"]},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}},
    },
    "required": ["name", "age", "kind", "friends"],
    "additionalProperties": False,
    "$defs": {"friend": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
}

SAMPLING: list[Fields] = [
    {}, {"temperature": 0}, {"temperature": 2}, {"temperature": None}, {"top_p": 0.1}, {"top_p": 1},
    {"frequency_penalty": -2.0}, {"frequency_penalty": 2, "presence_penalty": 2}, {"presence_penalty": -2.0},
    {"seed": 7}, {"seed": -(2**63)}, {"n": 2}, {"n": 5, "seed": 0}, {"logit_bias": {"65": -100, "66": 100}},
    {"logit_bias": {}}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 20}, {"logprobs": False},
    {"logprobs": True, "top_logprobs": 0}, {"max_tokens": 5}, {"max_completion_tokens": 3},
    {"max_completion_tokens": None, "max_tokens": None}, {"stop": "lo"}, {"stop": ["a", "b", "c", "d"]},
    {"stop": None}, {"stop": []}, {"temperature": 0.5, "top_p": 0.9, "seed": 1, "max_tokens": 4, "n": 2},
    {"prediction": {"type": "content", "content": "Hello"}},
    {"prediction": {"type": "content", "content": [part("Hel"), part("lo")]}},
]  # fmt: skip
ADVICE: list[Fields] = [
    {"user": "somebody"}, {"metadata": {"run": "1"}}, {"metadata": {}}, {"store": True}, {"store": False},
    {"service_tier": "auto"}, {"service_tier": "flex"}, {"service_tier": "priority"},
    {"reasoning_effort": "minimal"}, {"reasoning_effort": "none"}, {"reasoning_effort": "high"},
    {"verbosity": "low"}, {"verbosity": "high"}, {"safety_identifier": "hash"}, {"prompt_cache_key": "k"},
    {"prompt_cache_retention": "24h"}, {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
    {"prompt_cache_options": {"mode": "implicit"}}, {"modalities": ["text"]}, {"audio": None},
    {"parallel_tool_calls": True, **with_tools(WEATHER)}, {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": {"include_usage": False}},
    {"stream": True, "stream_options": {"include_obfuscation": False}},
    {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}},
    {"stream": True, "stream_options": None}, {"stream": True, "n": 3, "logprobs": True},
]  # fmt: skip
MESSAGES: list[Fields] = [
    say({"role": "system", "content": "Be brief."}, USER),
    say({"role": "developer", "content": "Be brief."}, USER),
    say({"role": "system", "content": [part("Be"), part("brief.")]}, USER),
    say({"role": "developer", "content": [part("Be brief.")], "name": "boss"}, USER),
    say({**USER, "name": "Ada"}), say({"role": "user", "content": ""}),
    say({"role": "user", "content": "Gr\u00fc\u00dfe \U0001f600"}),
    say({"role": "user", "content": [part("Hi")]}), say({"role": "user", "content": [part("a"), part("b")]}),
    say({"role": "user", "content": [part("Hi", **BREAK)]}),
    say(USER, USER), say(USER, answer("Hello"), USER), say(USER, answer("Hello", name="bot"), USER),
    say(USER, answer([part("Hel"), part("lo")]), USER), say(USER, answer(None, refusal="No."), USER),
    say(USER, answer([{"type": "refusal", "refusal": "No."}]), USER),
    say(USER, answer("Hello", refusal=None, audio=None, function_call=None), USER),
    say(*[USER, answer("Hello")] * 20, USER),
    say(USER, called(CALL), RESULT), say(USER, called(CALL, content=""), RESULT),
    say(USER, called(CALL, content="Let me look."), RESULT), say(USER, called(CALL, content=[part("Hm")]),
    RESULT),
    say(USER, called(CALL, NOW), RESULT, {**RESULT, "tool_call_id": "call_2"}),
    say(USER, called(CALL, NOW), {**RESULT, "tool_call_id": "call_2"}, RESULT),
    say(USER, called(CALL), {**RESULT, "content": [part("sun"), part("ny")]}),
    say(USER, called(CALL), {**RESULT, "content": ""}),
    say(USER, called(CALL), RESULT, answer("Sunny."), USER, called(NOW),
    {**RESULT, "tool_call_id": "call_2"}),
    {**say(USER, called(CALL), RESULT), **with_tools(WEATHER)},
    {**say(USER, called(CALL), RESULT, USER), **with_tools(WEATHER, tool_choice="none")},
]  # fmt: skip
SHAPES: list[Fields] = [
    {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}},
    shaped(SCHEMA), shaped(SCHEMA, strict=True), shaped(SCHEMA, strict=False, description="A city"),
    shaped(SCHEMA, strict=None), shaped(PERSON, strict=True), shaped({"type": "object"}),
    shaped({"type": "array", "items": SCHEMA}), shaped({"enum": ["yes", "no"]}),
    {**shaped(SCHEMA, strict=True), "logprobs": True, "n": 2}, {**shaped(SCHEMA), "temperature": 0},
    {**shaped(SCHEMA), **with_tools(WEATHER)},
]  # fmt: skip
TOOLS: list[Fields] = [
    with_tools(WEATHER), with_tools(function("now")), with_tools(function("now", parameters={})),
    with_tools(function("now", parameters={"type": "object", "properties": {}})),
    with_tools(function("a-b_C9", description="")), with_tools(STRICT), with_tools(WEATHER, function("now")),
    with_tools(function("make", parameters=PERSON)),
    with_tools(function("x", strict=False, parameters=SCHEMA)),
    with_tools(*[function(f"f{i}") for i in range(128)]),
    offered("auto"), offered("none"), offered("required"), offered(function("weather")),
    offered(function("now")),
    offered("auto", parallel_tool_calls=False), offered("required", parallel_tool_calls=False),
    offered({"type": "allowed_tools", "allowed_tools": ALLOWED}),
    offered({"type": "allowed_tools", "allowed_tools": {**ALLOWED, "mode": "required"}}),
    with_tools(STRICT, tool_choice="required"),
    {**offered("required"), "logprobs": True, "temperature": 0}, {**offered("auto"), "n": 2, "stop": ["x"]},
]  # fmt: skip

TYPES: list[tuple[Fields, int, str | None]] = [
    ({name: wrong}, 400, name)
    for name, wrong in {
        "temperature": "hot", "top_p": [1], "n": "2", "frequency_penalty": {}, "presence_penalty": "0",
        "seed": 1.5, "max_tokens": "5", "max_completion_tokens": 2.5, "stop": 3, "logit_bias": [1],
        "logprobs": "yes", "top_logprobs": "3", "stream": "yes", "user": 3, "metadata": "x", "store": "yes",
        "service_tier": 5, "reasoning_effort": 5, "verbosity": 5, "prompt_cache_key": 1,
        "prompt_cache_retention": 24, "prompt_cache_options": "explicit", "safety_identifier": [],
        "prediction": "Hello", "response_format": "json", "tools": {}, "tool_choice": 5,
        "parallel_tool_calls": "no", "messages": "Hi", "model": 5, "modalities": "text",
    }.items()
]  # fmt: skip
RANGES: list[tuple[Fields, int, str | None]] = [
    ({name: wrong}, 400, name)
    for name, wrong in {
        "temperature": -0.1, "top_p": 1.1, "n": 0, "frequency_penalty": 2.1, "presence_penalty": -2.1,
        "max_tokens": 0, "max_completion_tokens": -1, "logit_bias": {"65": 101}, "stop": ["a", 3],
        "messages": [], "tool_choice": "required", "seed": 2**64, "tempreature": 1, "top_logprobs": 3,
        "stream_options": {"include_usage": True},
    }.items()
]  # fmt: skip
INSIDE: list[tuple[Fields, int, str | None]] = [
    ({"n": 129}, 400, "n"), ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs"), ({"messages": ABSENT}, 400, "messages"),
    ({"messages": ABSENT, "stream": True}, 400, "messages"), ({"stream": True, "n": 0}, 400, "n"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, 400, "max_completion_tokens"),
    (say({"content": "Hi"}), 400, "messages"), (say({"role": "robot", "content": "x"}), 400, "messages"),
    (say({"role": "user"}), 400, "messages"), (say({"role": "user", "content": 5}), 400, "messages"),
    (say({"role": "user", "content": []}), 400, "messages"),
    (say({"role": "user", "content": [{"type": "text"}]}), 400, "messages"),
    (say({"role": "user", "content": [{"type": "video", "video": "x"}]}), 400, "messages"),
    (say({**USER, "name": 5}), 400, "messages"), (say({**USER, "mood": "good"}), 400, "messages"),
    (say(USER, RESULT), 400, "messages"), (say(USER, answer("Hello"), RESULT), 400, "messages"),
    (say(USER, called(CALL), {**RESULT, "tool_call_id": "call_9"}), 400, "messages"),
    (say(USER, called({"id": "call_1", "type": "function"})), 400, "messages"),
    (say(USER, {**called(), "tool_calls": "weather"}), 400, "messages"),
    (with_tools({"type": "function"}), 400, "tools"), (with_tools(function("")), 400, "tools"),
    (with_tools(function("two words")), 400, "tools"), (with_tools(function("x" * 129)), 400, "tools"),
    (with_tools(function("x", parameters=[])), 400, "tools"), (with_tools(function("x", strict=1)),
    400, "tools"),
    (with_tools(WEATHER, WEATHER), 400, "tools"), (with_tools({"type": "retrieval"}), 400, "tools"),
    (with_tools(*[function(f"f{i}") for i in range(129)]), 400, "tools"),
    (offered("any"), 400, "tool_choice"), (offered(function("walk")), 400, "tool_choice"),
    (offered({"type": "function"}), 400, "tool_choice"),
    (offered({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}), 400, "tool_choice"),
    ({"response_format": {"type": "xml"}}, 400, "response_format"),
    ({"response_format": {}}, 400, "response_format"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
    (shaped("object"), 400, "response_format"), (shaped({"type": "strange"}), 400, "response_format"),
    (shaped({"type": "object", "properties": {}}, strict=True), 400, "response_format"),
    ({"stream": True, "stream_options": 5}, 400, "stream_options"), ({"model": "gpt-4o"}, 404, "model"),
    ({"model": "gpt-4o", "stream": True}, 404, "model"),
]  # fmt: skip
IMAGE: Fields = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND: Fields = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE: Fields = {"type": "file", "file": {"file_id": "file-1"}}
CUSTOM: Fields = {"type": "custom", "custom": {"name": "run"}}
TEXTS_ALONE, ASK = "models read text alone", "of its own models some have it; Octavo's field lists refuse it"
OTHERWISE: list[tuple[Fields, int, int, str]] = [
    (say({"role": "user", "content": [part("What is it?"), IMAGE]}), 200, 400, TEXTS_ALONE),
    (say({"role": "user", "content": [part("What is it?"), SOUND]}), 200, 400, TEXTS_ALONE),
    (say({"role": "user", "content": [part("What is it?"), FILE]}), 200, 400, TEXTS_ALONE),
    ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, 200, 400, ASK),
    ({"web_search_options": {}}, 200, 400, ASK), ({"moderation": {"model": "omni"}}, 200, 400, ASK),
    ({"functions": [{"name": "weather"}]}, 200, 400, "deprecated for tools"),
    ({"functions": [{"name": "weather"}], "function_call": {"name": "weather"}},
    200, 400, "deprecated for tools"),
    (with_tools(CUSTOM), 200, 400, "only functions are tools"),
    (say(USER, called({**CALL, "function": {"name": "f", "arguments": "{"}}), RESULT), 200, 400,
     "templates read arguments as JSON"),
    ({"top_p": 0}, 200, 400, "no token is left; temperature 0 takes the likeliest"),
    ({"temperature": 2.5}, 400, 200, "vLLM's clients may"), ({"stop": list("abcde")},
    400, 200, "vLLM's clients may"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, 400, 200, "they say the same"),
    ({"tools": []}, 400, 200, "some clients always send the list"),
    (with_tools(function("x" * 65)), 400, 200, "Anthropic's clients have names of 128"),
    (say(USER, called(CALL), {"role": "tool", "content": "sunny"}), 400, 200, "models' examples name none"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, 400, 200,
     "a name is for the service's cache"),
]  # fmt: skip

CHAT = Table(
    client="openai-python chat",
    path="/v1/chat/completions",
    reads="openai chat",
    base={"model": MODEL, "messages": [USER]},
    taken=[*SAMPLING, *ADVICE, *MESSAGES, *SHAPES, *TOOLS],
    refused=[*TYPES, *RANGES, *INSIDE],
    otherwise=OTHERWISE,
    params=CompletionCreateParamsNonStreaming,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)
