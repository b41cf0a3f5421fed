"""openai for Python, its helpers too."""

from __future__ import annotations

import json
from typing import Any

import openai
from _features import ASK, DONE, ECHO, refused, run
from pydantic import BaseModel

HI = [{"role": "user", "content": "Hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "echo", "parameters": ECHO}}]


class City(BaseModel):
    city: str


def client(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def chat(url: str, key: str, model: str) -> None:
    found = client(url, key).chat.completions.create(model=model, messages=HI)
    assert found.choices[0].message.content == "A short title"


def chat_stream(url: str, key: str, model: str) -> None:
    with client(url, key).chat.completions.stream(model=model, messages=HI) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.content == "A short title"
    assert {"content.delta", "content.done"} <= kinds


def tools(url: str, key: str, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": ASK}]
    while True:
        asked = client(url, key).chat.completions.create(model=model, messages=messages, tools=TOOLS)
        message = asked.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += [
            {"role": "tool", "tool_call_id": c.id, "content": json.loads(c.function.arguments)["text"]}
            for c in message.tool_calls
        ]
    assert message.content == DONE


def tools_stream(url: str, key: str, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": ASK}]
    done = 0
    while True:
        asked = client(url, key).chat.completions.stream(model=model, messages=messages, tools=TOOLS)
        with asked as stream:
            done += sum(event.type == "tool_calls.function.arguments.done" for event in stream)
            message = stream.get_final_completion().choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed", "function_call"}))
        for call in messages[-1].get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None)
        if not message.tool_calls:
            break
        messages += [
            {"role": "tool", "tool_call_id": c.id, "content": json.loads(c.function.arguments)["text"]}
            for c in message.tool_calls
        ]
    assert (message.content, done) == (DONE, 2)


def typed(url: str, key: str, model: str) -> None:
    found = client(url, key).chat.completions.parse(model=model, messages=HI, response_format=City)
    assert found.choices[0].message.parsed == City(city="Paris")


def responses(url: str, key: str, model: str) -> None:
    asked = client(url, key)
    first = asked.responses.create(model=model, input="Hi", reasoning={"effort": "low"})
    assert first.output_text == "A short title"
    assert asked.responses.retrieve(first.id).output_text == "A short title"
    assert asked.responses.input_items.list(first.id).data[0].type == "message"
    counted = asked.responses.input_tokens.count(model=model, input="Hi")
    assert counted.input_tokens == first.usage.input_tokens
    asked.responses.delete(first.id)


def responses_tools_stream(url: str, key: str, model: str) -> None:
    flat: list[Any] = [{"type": "function", "name": "echo", "parameters": ECHO, "strict": False}]
    asked: dict[str, Any] = {"model": model, "tools": flat, "input": ASK}
    while True:
        with client(url, key).responses.stream(**asked) as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
        calls = [item for item in final.output if item.type == "function_call"]
        if not calls:
            break
        outputs = [
            {"type": "function_call_output", "call_id": c.call_id, "output": json.loads(c.arguments)["text"]}
            for c in calls
        ]
        asked |= {"input": outputs, "previous_response_id": final.id}
    assert final.output_text == DONE


def embeddings(url: str, key: str, model: str) -> None:
    found = client(url, key).embeddings.create(model=model, input=["a", "b"])
    assert len(found.data) == 2


def errors(url: str, key: str, model: str) -> None:
    asked = {"model": model, "messages": HI}
    create = client(url, key).chat.completions.create
    assert refused(openai.BadRequestError, create, **asked, temperature=200).request_id
    assert refused(openai.NotFoundError, create, **{**asked, "model": "x"}).request_id
    refused(openai.AuthenticationError, client(url, "wrong").models.list)


run("openai", {"chat": chat, "stream": chat_stream, "tools": tools, "tools, streamed": tools_stream,
               "typed": typed, "responses": responses, "responses, tools streamed": responses_tools_stream,
               "embeddings": embeddings, "errors": errors})  # fmt: skip
