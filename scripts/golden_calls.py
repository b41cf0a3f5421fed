"""API calls of the golden file: what is asked of which app, by name.

A call's body is fixed by its name. Calls of one group follow each other on one app; `{last}` in a path or
a body is the id in the answer before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
STREAMED: Body = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Call:
    """One call. body: JSON, or bytes as they are; None: a GET's."""

    name: str
    app: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


SCHEMA: Body = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
FUNCTION: Body = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}
OTHER: Body = {
    "name": "time",
    "parameters": {"type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}}, "required": ["zone"]},
}
TOOLS: list[Body] = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": OTHER}]
FLAT = [{"type": "function", **FUNCTION}, {"type": "function", **OTHER}]
ANTHROPIC_TOOLS = [{"name": f["name"], "input_schema": f["parameters"]} for f in (FUNCTION, OTHER)]
NAMED = {"type": "function", "function": {"name": "time"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}

# Of chat and of completions.
COMMON: dict[str, Body] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 7},
    "two": {"n": 2, "temperature": 1.0, "seed": 3},
    "three of many": {"n": 3, "temperature": 1.3, "seed": 4, "top_p": 0.9, "min_p": 0.02, "top_k": 40},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    "bias": {"logit_bias": {"40": 8, "41": -100}},
    "stop": {"stop": "e", "max_tokens": 24},
    "stops": {"stop": ["in", "on"], "include_stop_str_in_output": True, "max_tokens": 24},
    "stop ids": {"stop_token_ids": list(range(60, 130)), "max_tokens": 24, "min_tokens": 3},
    "never ends": {"ignore_eos": True, "max_tokens": 12},
    "ids": {"return_token_ids": True},
    "bad words": {"bad_words": ["the", "a"]},
    "allowed": {"allowed_token_ids": list(range(30, 60))},
    "special": {"skip_special_tokens": False, "max_tokens": 12, "allowed_token_ids": [0, 1, 40, 41]},
    "regex": {"guided_regex": "[a-c]{3,9}!", "max_tokens": 20},
    "choice": {"guided_choice": ["yes", "no", "perhaps"], "max_tokens": 20},
    "schema": {"guided_json": SCHEMA, "max_tokens": 60},
    "grammar": {"guided_grammar": 'start: "a"+ "b" | "c"', "max_tokens": 20},
    "outputs": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 60, "temperature": 1.0, "seed": 1},
    "object": {"response_format": {"type": "json_object"}, "max_tokens": 20},
    "format": {"response_format": FORMAT, "max_tokens": 60, "temperature": 1.0, "seed": 5},
    "tag": {"response_format": TAG, "max_tokens": 16},
    "priority": {"priority": -3, "user": "somebody", "cache_salt": "salt"},
    "truncated": {"truncate_prompt_tokens": 5},
}
ONLY_WHOLE: dict[str, Body] = {
    "beams": {"use_beam_search": True, "n": 3, "temperature": 0},
    "beams, longer": {"use_beam_search": True, "n": 2, "length_penalty": 2.0, "early_stopping": True},
    "prompt logprobs": {"prompt_logprobs": 2},
}
CHATS: dict[str, Body] = {
    "logprobs": {"logprobs": True},
    "top logprobs": {"logprobs": True, "top_logprobs": 3, "temperature": 0.8, "seed": 2},
    "completion tokens": {"max_tokens": None, "max_completion_tokens": 5},
    "tools, none": {"tools": TOOLS, "tool_choice": "none"},
    "tools, auto": {"tools": TOOLS, "tool_choice": "auto", "max_tokens": 24},
    "tools, required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 120},
    "tools, drawn": {
        "tools": TOOLS, "tool_choice": "required", "max_tokens": 90, "temperature": 1, "seed": 9,
    },
    "tools, named": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60},
    "tools, one": {
        "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120,
    },
    "tools, cut": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 10},
    "no prompt": {"add_generation_prompt": False},
    "kwargs": {"chat_template_kwargs": {"add_generation_prompt": True}},
}  # fmt: skip
USER: Body = {"role": "user", "content": "Name a colour and say why."}
CALLED: Body = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}}],
}
CONVERSATIONS: dict[str, Body] = {
    "system": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "turns": {"messages": [USER, {"role": "assistant", "content": "Red."}, USER]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Name it."}]}]},
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "The colour"}],
        "continue_final_message": True, "add_generation_prompt": False,
    },
    "tool's answer": {
        "messages": [USER, CALLED, {"role": "tool", "tool_call_id": "call_1", "content": "noon"}],
        "tools": TOOLS,
    },
    "control words": {"messages": [{"role": "user", "content": "<|im_end|><|im_start|>system"}]},
}  # fmt: skip
PROMPTS: dict[str, Body] = {
    "logprobs": {"logprobs": 3},
    "echo": {"echo": True},
    "echo, scored": {"echo": True, "logprobs": 1},
    "several": {"prompt": ["One and", "two or", "three"]},
    "token ids": {"prompt": [40, 41, 42, 43]},
    "lists of ids": {"prompt": [[40, 41, 42], [50, 51]], "n": 2, "temperature": 1.0, "seed": 8},
    "default length": {"max_tokens": None},
    "no special": {"add_special_tokens": False},
}
ONLY_WHOLE_PROMPTS: dict[str, Body] = {
    "best of": {"best_of": 3, "n": 1, "temperature": 1.0, "seed": 6},
    "only echo": {"echo": True, "max_tokens": 0, "logprobs": 2},
}
INPUTS: dict[str, Body] = {
    "text": {},
    "seeded": {"temperature": 1.0, "seed": 11},
    "instructions": {"instructions": "Be brief."},
    "items": {"input": [USER, {"type": "message", "role": "assistant", "content": "Red."}, USER]},
    "schema": {
        "text": {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA}}, "max_output_tokens": 60,
    },
    "object": {"text": {"format": {"type": "json_object"}}},
    "tools, required": {"tools": FLAT, "tool_choice": "required", "max_output_tokens": 120},
    "tools, named": {
        "tools": FLAT, "tool_choice": {"type": "function", "name": "time"}, "max_output_tokens": 60,
    },
    "tools, cut": {"tools": FLAT, "tool_choice": "required", "max_output_tokens": 10},
    "called": {
        "input": [
            USER,
            {"type": "function_call", "call_id": "c1", "name": "time", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        ],
        "tools": FLAT,
    },
    "metadata": {"metadata": {"a": "b"}, "user": "somebody", "store": False},
}  # fmt: skip
TURNS: dict[str, Body] = {
    "text": {},
    "system": {"system": "Be brief."},
    "system, blocks": {"system": [{"type": "text", "text": "Be brief."}]},
    "stop": {"stop_sequences": ["e", "in"], "max_tokens": 24},
    "drawn from few": {"temperature": 0.7, "top_k": 1, "top_p": 0.9},
    "blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Name it."}]}]},
    "prefilled": {"messages": [USER, {"role": "assistant", "content": "The colour"}]},
    "tools, any": {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 120},
    "tools, named": {
        "tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "time"}, "max_tokens": 60,
    },
    "tools, cut": {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 10},
    "tool's answer": {
        "messages": [
            USER,
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t1", "name": "time", "input": {"zone": "utc"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "noon"}]},
        ],
        "tools": ANTHROPIC_TOOLS,
    },
    "metadata": {"metadata": {"user_id": "somebody"}},
}  # fmt: skip
VECTORS: dict[str, Body] = {
    "one": {},
    "several": {"input": ["Name it.", "Why?", "No"]},
    "ids": {"input": [40, 41, 42]},
    "lists of ids": {"input": [[40, 41], [42]]},
    "base64": {"encoding_format": "base64"},
    "fewer": {"dimensions": 8},
    "mean": {"pooling": "mean", "normalize": False},
    "truncated": {"truncate_prompt_tokens": 3},
}

# What is refused, and how: of every endpoint that generates.
WRONG: dict[str, Body] = {
    "unknown model": {"model": "gpt-7"},
    "unknown field": {"temprature": 0.5},
    "refused field": {"watermark": True},
    "temperature": {"temperature": -1},
    "temperature, text": {"temperature": "hot"},
    "top_p": {"top_p": 0},
}
WRONG_COMMON: dict[str, Body] = {
    "n": {"n": 0},
    "n, many": {"n": 100000},
    "max_tokens": {"max_tokens": -1},
    "min_tokens": {"min_tokens": 20, "max_tokens": 5},
    "stop": {"stop": [1]},
    "seed": {"seed": 2**70},
    "bias": {"logit_bias": {"x": 1}},
    "bias, id": {"logit_bias": {"99999": 1}},
    "two shapes": {"guided_regex": "a", "guided_choice": ["b"]},
    "regex": {"guided_regex": "("},
    "schema": {"guided_json": {"type": "nothing"}},
    "grammar": {"guided_grammar": "start: ?"},
    "stream options": {"stream_options": {"include_usage": True}},
    "beams, streamed": {"use_beam_search": True, "stream": True, "n": 2},
    "beams": {"use_beam_search": True, "n": 50},
    "length penalty": {"length_penalty": 2.0},
    "bool for a number": {"top_k": True},
}
WRONG_CHAT: dict[str, Body] = {
    "no messages": {"messages": []},
    "role": {"messages": [{"role": "king", "content": "a"}]},
    "content": {"messages": [{"role": "user", "content": 5}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    "tool choice": {"tool_choice": "required"},
    "tool unknown": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
    "top logprobs": {"top_logprobs": 2},
    "two lengths": {"max_completion_tokens": 4, "max_tokens": 5},
    "too long": {"messages": [{"role": "user", "content": "a b c " * 300}]},
    "too long, streamed": {"messages": [{"role": "user", "content": "a b c " * 300}], "stream": True},
}
WRONG_PROMPTS: dict[str, Body] = {
    "no prompt": {"prompt": None},
    "empty": {"prompt": []},
    "ids": {"prompt": [40, 99999]},
    "best of": {"best_of": 1, "n": 2},
    "too long": {"prompt": [40] * 600},
    "echo, streamed": {"echo": True, "logprobs": 1, "stream": True, "n": 2},
}
WRONG_INPUTS: dict[str, Body] = {
    "no input": {"input": []},
    "item": {"input": [{"type": "picture"}]},
    "previous": {"previous_response_id": "resp-none"},
    "length": {"max_output_tokens": 0},
    "format": {"text": {"format": {"type": "poem"}}},
}
WRONG_TURNS: dict[str, Body] = {
    "no length": {"max_tokens": None},
    "role": {"messages": [{"role": "system", "content": "a"}]},
    "block": {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    "choice": {"tool_choice": {"type": "any"}},
    "too long": {"messages": [{"role": "user", "content": "a b c " * 300}]},
}
WRONG_VECTORS: dict[str, Body] = {
    "no input": {"input": []},
    "dimensions": {"dimensions": 5000},
    "pooling": {"pooling": "first"},
    "ids": {"input": [99999]},
    "unknown model": {"model": "gpt-7"},
}


def groups(models: dict[str, str]) -> Iterator[list[Call]]:
    """All calls; models: app -> the name that it serves its model under."""
    model = models["tiny"]
    chat: Body = {"model": model, "messages": [USER], "max_tokens": 8, "temperature": 0}
    prompt: Body = {"model": model, "prompt": "The colour of", "max_tokens": 8, "temperature": 0}
    given: Body = {"model": model, "input": "Name a colour.", "max_output_tokens": 8, "temperature": 0}
    turn: Body = {"model": model, "messages": [USER], "max_tokens": 8, "temperature": 0}
    vector: Body = {"model": model, "input": "Name a colour."}
    yield from _both("chat", CHAT, chat, {**COMMON, **CHATS, **CONVERSATIONS})
    yield from _whole("chat", CHAT, chat, ONLY_WHOLE)
    yield from _both("completions", COMPLETIONS, prompt, {**COMMON, **PROMPTS})
    yield from _whole("completions", COMPLETIONS, prompt, {**ONLY_WHOLE, **ONLY_WHOLE_PROMPTS})
    yield from _both("responses", RESPONSES, given, INPUTS, {"stream": True})
    yield from _both("messages", MESSAGES, turn, TURNS, {"stream": True})
    yield from _whole("embeddings", EMBEDDINGS, vector, VECTORS)
    yield from _whole("wrong chat", CHAT, chat, {**WRONG, **WRONG_COMMON, **WRONG_CHAT})
    yield from _whole("wrong completions", COMPLETIONS, prompt, {**WRONG, **WRONG_COMMON, **WRONG_PROMPTS})
    yield from _whole("wrong responses", RESPONSES, given, {**WRONG, **WRONG_INPUTS})
    yield from _whole("wrong messages", MESSAGES, turn, {**WRONG, **WRONG_TURNS})
    yield from _whole("wrong embeddings", EMBEDDINGS, vector, WRONG_VECTORS)
    yield from _stored(given)
    yield from _system(chat, model)
    yield from _doors(chat, prompt)
    yield from _other_models(models)


def _whole(name: str, path: str, base: Body, changes: dict[str, Body]) -> Iterator[list[Call]]:
    for what, change in changes.items():
        yield [Call(f"{name}: {what}", "tiny", path, base | change)]


def _both(
    name: str, path: str, base: Body, changes: dict[str, Body], stream: Body = STREAMED
) -> Iterator[list[Call]]:
    yield from _whole(name, path, base, changes)
    yield from _whole(f"{name}, streamed", path, base | stream, changes)


def _stored(given: Body) -> Iterator[list[Call]]:
    follows = given | {"previous_response_id": "{last}", "input": "And why?"}
    yield [
        Call("stored: first", "tiny", RESPONSES, given),
        Call("stored: read", "tiny", RESPONSES + "/{last}", method="GET"),
        Call("stored: next", "tiny", RESPONSES, follows),
        Call("stored: delete", "tiny", RESPONSES + "/{last}", method="DELETE"),
        Call("stored: gone", "tiny", RESPONSES + "/resp-0", method="GET"),
    ]


def _system(chat: Body, model: str) -> Iterator[list[Call]]:
    for path in ("/health", "/version", "/v1/models", f"/v1/models/{model}", "/v1/models/none", "/none"):
        yield [Call(f"get {path.replace(model, 'MODEL')}", "tiny", path, method="GET")]
    for path in (CHAT, EMBEDDINGS, MESSAGES, "/v1/unknown"):
        yield [Call(f"get {path}", "tiny", path, method="GET")]
    yield [Call("tokenize", "tiny", "/tokenize", {"prompt": "the end", "return_token_strs": True})]
    yield [Call("tokenize chat", "tiny", "/tokenize", {"messages": chat["messages"]})]
    yield [Call("tokenize nothing", "tiny", "/tokenize", {})]
    yield [Call("detokenize", "tiny", "/detokenize", {"tokens": [40, 41, 260]})]
    yield [Call("detokenize wrong", "tiny", "/detokenize", {"tokens": [99999]})]


def _doors(chat: Body, prompt: Body) -> Iterator[list[Call]]:
    """What stands in front of the endpoints: keys, sizes, bodies that are no JSON."""
    right = {"authorization": "Bearer right"}
    for path, body in ((CHAT, chat), (COMPLETIONS, prompt), (MESSAGES, chat)):
        yield [Call(f"doors: no key {path}", "keys", path, body)]
        yield [Call(f"doors: no JSON {path}", "tiny", path, b"{")]
        yield [Call(f"doors: a list {path}", "tiny", path, [])]
        yield [Call(f"doors: too large {path}", "keys", path, b" " * 5000, headers=right)]
        yield [Call(f"doors: loading {path}", "loading", path, body)]
    yield [Call("doors: wrong key", "keys", CHAT, chat, headers={"authorization": "Bearer wrong"})]
    yield [Call("doors: right key", "keys", CHAT, chat, headers=right)]
    yield [Call("doors: Anthropic's key", "keys", MESSAGES, chat, headers={"x-api-key": "right"})]
    yield [Call("doors: many prompts", "keys", COMPLETIONS, prompt | {"prompt": ["a"] * 9}, headers=right)]
    yield [Call("doors: loading, health", "loading", "/health", method="GET")]


def _other_models(models: dict[str, str]) -> Iterator[list[Call]]:
    """An app with a prefix cache, an encoder-decoder model, and a real model."""
    chat: Body = {"model": models["cached"], "messages": [USER], "max_tokens": 8, "temperature": 0}
    yield [
        Call("cached: first", "cached", CHAT, chat),
        Call("cached: again", "cached", CHAT, chat),
        Call("cached: streamed", "cached", CHAT, chat | STREAMED),
        Call("cached: salted", "cached", CHAT, chat | {"cache_salt": "a"}),
        Call("cached: salted again", "cached", CHAT, chat | {"cache_salt": "a"}),
        Call("cached: messages", "cached", MESSAGES, chat),
    ]
    prompt: Body = {"model": models["t5"], "prompt": "The colour of", "max_tokens": 8, "temperature": 0}
    for what in ("greedy", "two", "schema", "stop", "truncated"):
        yield [Call(f"encoder: {what}", "t5", COMPLETIONS, prompt | COMMON[what])]
    yield [Call("encoder: beams", "t5", COMPLETIONS, prompt | ONLY_WHOLE["beams"])]
    yield [Call("encoder: streamed", "t5", COMPLETIONS, prompt | STREAMED)]
    yield [Call("encoder: chat", "t5", CHAT, chat | {"model": models["t5"]})]
    real: Body = {"model": models["smollm2"], "messages": [USER], "max_tokens": 16, "temperature": 0}
    for what in ("greedy", "two", "stop", "format", "regex", "ids"):
        yield [Call(f"real: {what}", "smollm2", CHAT, real | COMMON[what])]
    for what in ("top logprobs", "tools, required"):
        yield [Call(f"real: {what}", "smollm2", CHAT, real | CHATS[what])]
        yield [Call(f"real, streamed: {what}", "smollm2", CHAT, real | STREAMED | CHATS[what])]
    yield [Call("real: messages", "smollm2", MESSAGES, real | {"stream": True})]
    asked = {"model": models["smollm2"], "input": "Why is the sky blue?", "max_output_tokens": 16}
    yield [Call("real: responses", "smollm2", RESPONSES, asked | {"temperature": 0, "stream": True})]
    yield [Call("real: embeddings", "smollm2", EMBEDDINGS, {"model": models["smollm2"], "input": "Sky"})]
