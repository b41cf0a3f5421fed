"""huggingface_hub's InferenceClient, its chat."""

from __future__ import annotations

import json
from typing import Any

from _features import ASK, DONE, ECHO, run
from huggingface_hub import InferenceClient

HI = [{"role": "user", "content": "Hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "echo", "parameters": ECHO}}]


def client(url: str, key: str) -> InferenceClient:
    return InferenceClient(base_url=f"{url}/v1", api_key=key)


def chat(url: str, key: str, model: str) -> None:
    found = client(url, key).chat_completion(HI, model=model, max_tokens=99)
    assert found.choices[0].message.content == "A short title"


def stream(url: str, key: str, model: str) -> None:
    asked = client(url, key)  # which closes the stream when nobody has it any more
    parts = asked.chat_completion(HI, model=model, stream=True, max_tokens=99)
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == "A short title"


def tools(url: str, key: str, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": ASK}]
    while True:
        found = client(url, key).chat_completion(messages, model=model, tools=TOOLS, max_tokens=999)
        message = found.choices[0].message
        if not message.tool_calls:
            break
        calls = [
            {"id": c.id, "type": "function",
             "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls
        ]  # fmt: skip
        messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": c.id, "content": json.loads(c.function.arguments)["text"]}
            for c in message.tool_calls
        ]
    assert message.content == DONE


def typed(url: str, key: str, model: str) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    for wanted in (
        {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        {"type": "json_object", "value": schema},
    ):
        found = client(url, key).chat_completion(HI, model=model, response_format=wanted, max_tokens=99)
        assert json.loads(found.choices[0].message.content) == {"city": "Paris"}


run("huggingface_hub", {"chat": chat, "stream": stream, "tools": tools, "typed": typed})
