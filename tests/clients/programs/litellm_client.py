"""litellm, as it calls OpenAI's, vLLM's and Anthropic's servers."""

from __future__ import annotations

import json
from typing import Any

import litellm
from _features import ASK, DONE, ECHO, run

HI = [{"role": "user", "content": "Hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "echo", "parameters": ECHO}}]
litellm.suppress_debug_info = True


def providers(url: str, key: str, model: str) -> list[dict[str, Any]]:
    openai, plain = {"api_base": f"{url}/v1", "api_key": key}, {"api_base": url, "api_key": key}
    return [
        {"model": f"openai/{model}", **openai},
        {"model": f"hosted_vllm/{model}", **openai},
        {"model": f"lm_studio/{model}", **openai},
        {"model": f"anthropic/{model}", **plain},
    ]


def chat(url: str, key: str, model: str) -> None:
    for each in providers(url, key, model):
        found = litellm.completion(messages=HI, max_tokens=99, num_retries=0, **each)
        assert found.choices[0].message.content == "A short title", each["model"]


def stream(url: str, key: str, model: str) -> None:
    for each in providers(url, key, model):
        parts = litellm.completion(messages=HI, max_tokens=99, stream=True, **each)
        assert "".join(p.choices[0].delta.content or "" for p in parts) == "A short title", each["model"]


def tools(url: str, key: str, model: str) -> None:
    for each in providers(url, key, model):
        messages: list[Any] = [{"role": "user", "content": ASK}]
        for _ in range(3):
            found = litellm.completion(messages=messages, tools=TOOLS, max_tokens=999, **each)
            message = found.choices[0].message
            messages.append(message.model_dump())
            messages += [
                {"role": "tool", "tool_call_id": c.id, "content": json.loads(c.function.arguments)["text"]}
                for c in message.tool_calls or ()
            ]
        assert message.content == DONE, each["model"]


def advice(url: str, key: str, model: str) -> None:
    openai = providers(url, key, model)[0]
    found = litellm.completion(messages=HI, reasoning_effort="low", metadata={"a": "b"}, user="u", **openai,
                               allowed_openai_params=["reasoning_effort"])  # fmt: skip
    assert found.choices[0].message.content == "A short title"


def responses(url: str, key: str, model: str) -> None:
    found = litellm.responses(model=f"openai/{model}", input="Hi", api_base=f"{url}/v1", api_key=key)
    assert found.output[0].content[0].text == "A short title"


def embeddings(url: str, key: str, model: str) -> None:
    found = litellm.embedding(model=f"openai/{model}", input=["a", "b"], api_base=f"{url}/v1", api_key=key)
    assert len(found.data) == 2


def too_long(url: str, key: str, model: str) -> None:
    """The error by which what builds on it falls back to another model."""
    for each in (providers(url, key, model)[0], providers(url, key, model)[-1]):
        try:
            litellm.completion(messages=[{"role": "user", "content": "x" * 1_200_000}], max_tokens=9, **each)
        except litellm.ContextWindowExceededError:
            continue
        raise AssertionError(each["model"])


run("litellm", {"chat": chat, "stream": stream, "tools": tools, "advice": advice, "responses": responses,
                "embeddings": embeddings, "errors": too_long})  # fmt: skip
