"""OpenAI's responses: openai's response_create_params, statuses of its API reference."""

from __future__ import annotations

from typing import Any

from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from support.shapes import ABSENT, MODEL, SCHEMA, Fields, Table
from support.shapes.chat import BREAK, PERSON

USER: Fields = {"role": "user", "content": "Hi"}
CALL: Fields = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Paris"}',
}
RESULT: Fields = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


def function(name: str, **more: Any) -> Fields:
    return {"type": "function", "name": name, "parameters": None, "strict": None, **more}


def items(*each: Fields, **more: Any) -> Fields:
    return {"input": list(each), **more}


def heard(*content: Fields, role: str = "user", **more: Any) -> Fields:
    return {"type": "message", "role": role, "content": list(content), **more}


def said(*content: Fields, **more: Any) -> Fields:
    return {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": list(content), **more}  # fmt: skip


def text(words: str, **more: Any) -> Fields:
    return {"type": "input_text", "text": words, **more}


def output(words: str, **more: Any) -> Fields:
    return {"type": "output_text", "text": words, "annotations": [], **more}


def shaped(schema: Any, **more: Any) -> Fields:
    return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, **more}}}


def offered(choice: Any, **more: Any) -> Fields:
    return {"tools": [WEATHER, function("now")], "tool_choice": choice, **more}


WEATHER = function("weather", description="Of a city", parameters=SCHEMA)
SPACE: Fields = {"type": "namespace", "name": "sky", "description": "Above", "tools": [
    {"type": "function", "name": "moon", "parameters": SCHEMA}]}  # fmt: skip
ALLOWED: Fields = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "weather"}],
}

PLAIN: list[Fields] = [
    {}, {"input": "\u00fc \U0001f600"}, {"instructions": "Be brief."}, {"instructions": None},
    {"temperature": 0},
    {"temperature": 2}, {"top_p": 0.3}, {"max_output_tokens": 16}, {"max_output_tokens": None},
    {"store": False},
    {"store": True}, {"metadata": {"run": "1"}}, {"metadata": {str(i): "x" for i in range(16)}},
    {"user": "somebody"}, {"safety_identifier": "hash"}, {"prompt_cache_key": "k"},
    {"prompt_cache_retention": "in_memory"}, {"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}},
    {"prompt_cache_options": {"prewarm": False}}, {"service_tier": "auto"}, {"service_tier": "flex"},
    {"truncation": "auto"}, {"truncation": "disabled"}, {"max_tool_calls": 3}, {"parallel_tool_calls": False},
    {"reasoning": {"effort": "low"}}, {"reasoning": {"effort": None, "summary": "auto"}},
    {"reasoning": {"summary": "detailed", "context": "auto"}}, {"reasoning": {"generate_summary": "concise"}},
    {"include": ["reasoning.encrypted_content"]}, {"include": []},
    {"include": ["web_search_call.action.sources"]},
    {"text": {"verbosity": "low"}}, {"background": False}, {"conversation": None}, {"prompt": None},
    {"previous_response_id": None}, {"top_logprobs": 0}, {"access_programs": {"cyber": "standard"}},
    {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
    {"image": {"context_compression": "auto"}},
    {"stream": True, "stream_options": {"include_obfuscation": False}},
    {"stream": True, "store": False, "max_output_tokens": 2}, {"tool_choice": "auto"}, {"tools": []},
]  # fmt: skip
INPUT: list[Fields] = [
    items(USER), items({**USER, "type": "message"}), items({"role": "developer", "content": "Be brief."},
    USER),
    items({"role": "system", "content": [text("Be brief.")]}, USER), items(heard(text("Hi"))),
    items(heard(text("a"), text("b"))), items(heard(text("Hi", **BREAK))), items(heard(text("Hi"),
    status="completed")),
    items(USER, {"role": "assistant", "content": "Hello"}, USER), items(USER, said(output("Hello")), USER),
    items(USER, said(output("Hello", logprobs=[])), USER), items(USER, said(output("Hm"),
    phase="commentary"), USER),
    items(USER, said({"type": "refusal", "refusal": "No."}), USER),
    items({**USER, "phase": None}), items(USER, CALL, RESULT), items(USER, {**CALL, "id": "fc_1"}, RESULT),
    items(USER, {**CALL, "status": "completed", "caller": {"type": "direct"}}, RESULT),
    items(USER, {**CALL, "caller": None}, {**RESULT, "name": "weather", "caller": {"type": "direct"}}),
    items(USER, CALL, {**RESULT, "id": "fco_1"}), items(USER, CALL, {**RESULT, "output": [text("sunny")]}),
    items(USER, CALL, {**CALL, "call_id": "call_2"}, RESULT, {**RESULT, "call_id": "call_2"}, USER),
    items(USER, {**CALL, "name": "moon", "namespace": "sky"}, RESULT, tools=[SPACE]),
    items(USER, {"type": "reasoning", "id": "rs_1", "summary": []}, CALL, RESULT),
    items(USER, {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}],
                 "content": [{"type": "reasoning_text", "text": "Hm"}], "encrypted_content": "x"}, USER),
]  # fmt: skip
TOOLS: list[Fields] = [
    {"tools": [WEATHER]}, {"tools": [function("now")]},
    {"tools": [function("w", parameters=SCHEMA, strict=True)]},
    {"tools": [function("w", parameters=PERSON, strict=False, defer_loading=False)]},
    {"tools": [function("w", parameters=SCHEMA, allowed_callers=["direct"])]},
    {"tools": [function("w", parameters=SCHEMA, output_schema={"type": "string"})]},
    {"tools": [SPACE]}, {"tools": [WEATHER, SPACE]}, {"tools": [{"type": "web_search"}]},
    {"tools": [{"type": "web_search_preview", "search_context_size": "low"}, WEATHER]},
    {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
    {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
    {"tools": [{"type": "image_generation"}]}, {"tools": [{"type": "local_shell"}, WEATHER]},
    {"tools": [{"type": "mcp", "server_label": "a", "server_url": "http://localhost:1"}]},
    {"tools": [{"type": "programmatic_tool_calling"}, WEATHER]}, {"tools": [{"type": "apply_patch"},
    WEATHER]},
    offered("auto"), offered("none"), offered("required"), offered({"type": "function", "name": "weather"}),
    offered(ALLOWED), offered({**ALLOWED, "mode": "required"}),
    offered("required", parallel_tool_calls=False),
    {"text": {"format": {"type": "text"}}}, {"text": {"format": {"type": "json_object"}}}, shaped(SCHEMA),
    shaped(SCHEMA, strict=True, description="A city"), shaped(PERSON, strict=True),
    shaped({"enum": ["a", "b"]}),
    {**shaped(SCHEMA, strict=False), "temperature": 0, "instructions": "As JSON."},
]  # fmt: skip
WRONG: list[tuple[Fields, int, str | None]] = [
    ({name: wrong}, 400, name)
    for name, wrong in {
        "input": 5, "instructions": 5, "temperature": "hot", "top_p": "x", "max_output_tokens": "5",
        "store": "yes", "metadata": ["a"], "user": 5, "tools": {}, "tool_choice": "required", "stream": "yes",
        "parallel_tool_calls": 1, "text": "plain", "reasoning": "low", "include": "all",
        "truncation": "middle",
        "previous_response_id": 5, "model": 5, "service_tier": 5, "prompt_cache_key": 5, "inputs": "Hi",
        "prompt_cache_options": "explicit", "context_management": 5, "max_tool_calls": "3",
        "safety_identifier": {},
    }.items()
]  # fmt: skip
INSIDE: list[tuple[Fields, int, str | None]] = [
    ({"input": ABSENT}, 400, "input"), ({"input": []}, 400, "input"), (items({"type": "message"}),
    400, "input"),
    (items({"role": "robot", "content": "x"}), 400, "input"), (items({"role": "user", "content": 5}),
    400, "input"),
    (items({"role": "user"}), 400, "input"), (items(heard({"type": "input_text"})), 400, "input"),
    (items({**USER, "mood": "good"}), 400, "input"), (items({"type": "dance"}), 400, "input"),
    (items(USER, RESULT), 400, "input"), (items(USER, CALL, {**RESULT, "call_id": "call_9"}), 400, "input"),
    (items(USER, {**CALL, "arguments": 5}, RESULT), 400, "input"),
    ({"temperature": -1}, 400, "temperature"), ({"top_p": 2}, 400, "top_p"),
    ({"max_output_tokens": 0}, 400, "max_output_tokens"), ({"metadata": {"a": 5}}, 400, "metadata"),
    ({"metadata": {str(i): "x" for i in range(17)}}, 400, "metadata"), ({"metadata": {"a" * 65: "x"}},
    400, "metadata"),
    ({"tools": [{"type": "function"}]}, 400, "tools"), ({"tools": [function("two words")]}, 400, "tools"),
    ({"tools": [WEATHER, WEATHER]}, 400, "tools"), ({"tools": [{"type": "dance"}]}, 400, "tools"),
    (offered("any"), 400, "tool_choice"), (offered({"type": "function", "name": "walk"}), 400, "tool_choice"),
    (offered({**ALLOWED, "tools": []}), 400, "tool_choice"), ({"text": {"format": {"type": "xml"}}},
    400, "text"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, 400, "text"),
    (shaped({"type": "object", "properties": {}}, strict=True), 400, "text"), (shaped({"type": "strange"}),
    400, "text"),
    ({"previous_response_id": "resp_none"}, 404, "previous_response_id"), ({"model": "gpt-5"}, 404, "model"),
    ({"model": "gpt-5", "stream": True}, 404, "model"),
]  # fmt: skip
IMAGE: Fields = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AAAA"}
FILE: Fields = {"type": "input_file", "file_id": "file-1"}
OTHERWISE: list[tuple[Fields, int, int, str]] = [
    (items(heard(text("What is it?"), IMAGE)), 200, 400, "models read text alone"),
    (items(heard(text("What is it?"), FILE)), 200, 400, "models read text alone"),
    ({"background": True}, 200, 400, "answers are made while the client waits"),
    ({"conversation": {"id": "conv_1"}}, 200, 400, "previous_response_id goes on with a conversation"),
    ({"prompt": {"id": "pmpt_1"}}, 200, 400, "no prompts are kept"),
    ({"moderation": {"model": "omni"}}, 200, 400, "texts are not moderated"),
    ({"top_logprobs": 5, "include": ["message.output_text.logprobs"]},
    200, 400, "chats and completions have them"),
    ({"tools": [{"type": "custom", "name": "run"}]}, 200, 400, "only functions are tools"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
    200, 400, "nothing is looked up"),
    ({"input": ABSENT, "instructions": "Be brief."}, 200, 400, "there is nothing to answer"),
    ({"max_output_tokens": 8}, 400, 200, "the service wants 16; other servers' clients may have fewer"),
    ({"temperature": 2.5}, 400, 200, "vLLM's clients may"),
    ({"seed": 5}, 400, 200, "other servers' clients have it"),
]  # fmt: skip

RESPONSES = Table(
    client="openai-python responses",
    path="/v1/responses",
    reads="openai response",
    base={"model": MODEL, "input": "Hi"},
    taken=[*PLAIN, *INPUT, *TOOLS],
    refused=[*WRONG, *INSIDE],
    otherwise=OTHERWISE,
    params=ResponseCreateParamsNonStreaming,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)
INPUT_TOKENS = Table(
    client="openai-python input_tokens",
    path="/v1/responses/input_tokens",
    reads="openai input tokens",
    base={"model": MODEL, "input": "Hi"},
    taken=[
        {}, {"instructions": "Be brief."}, {"tools": [WEATHER]}, items(USER, CALL, RESULT), shaped(SCHEMA),
        {"reasoning": {"effort": "low"}}, {"truncation": "auto"}, offered("auto", parallel_tool_calls=False),
        {"text": {"verbosity": "high"}}, {"previous_response_id": None},
    ],
    refused=[
        ({"input": 5}, 400, "input"), (items(USER, RESULT), 400, "input"), ({"tools": [WEATHER] * 2},
        400, "tools"),
        ({"model": "gpt-5"}, 404, "model"), ({"previous_response_id": "resp_none"},
        404, "previous_response_id"),
    ],
    otherwise=[({"personality": "friendly"}, 200, 400, "a style of the service's own models")],
    params=InputTokenCountParams,
    streams=False,
    headers={"user-agent": "OpenAI/Python 3.52.0"},
)  # fmt: skip
