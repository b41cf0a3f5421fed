"""anthropic for Python: messages, streams, its tool runner, counting, models, errors."""

from __future__ import annotations

from typing import Any

import anthropic
from _features import ASK, DONE, refused, run
from pydantic import BaseModel

HI: list[Any] = [{"role": "user", "content": "Hi"}]


class City(BaseModel):
    city: str


@anthropic.beta_tool
def echo(text: str) -> str:
    """Say a text.

    Args:
        text: what is said
    """
    return text


def client(url: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def chat(url: str, key: str, model: str) -> None:
    found = client(url, key).messages.create(model=model, max_tokens=99, messages=HI)
    assert found.content[0].text == "A short title"
    assert found.stop_reason == "end_turn"


def stream(url: str, key: str, model: str) -> None:
    with client(url, key).messages.stream(model=model, max_tokens=99, messages=HI) as events:
        assert "".join(events.text_stream) == "A short title"
        assert events.get_final_message().usage.output_tokens > 0


def tools(url: str, key: str, model: str) -> None:
    asked = {
        "model": model,
        "max_tokens": 999,
        "tools": [echo],
        "messages": [{"role": "user", "content": ASK}],
    }
    final = client(url, key).beta.messages.tool_runner(**asked).until_done()
    assert final.content[-1].text == DONE


def tools_stream(url: str, key: str, model: str) -> None:
    asked = {
        "model": model,
        "max_tokens": 999,
        "tools": [echo],
        "messages": [{"role": "user", "content": ASK}],
    }
    final = None
    for events in client(url, key).beta.messages.tool_runner(**asked, stream=True):
        for _ in events:
            pass
        final = events.get_final_message()
    assert final is not None
    assert final.content[-1].text == DONE


def typed(url: str, key: str, model: str) -> None:
    asked = client(url, key).messages.parse(model=model, max_tokens=99, messages=HI, output_format=City)
    assert asked.parsed_output == City(city="Paris")


def count(url: str, key: str, model: str) -> None:
    assert client(url, key).messages.count_tokens(model=model, messages=HI).input_tokens > 0


def models(url: str, key: str, model: str) -> None:
    (found,) = client(url, key).models.list().data
    assert (found.id, found.type, found.display_name) == (model, "model", model)
    assert found.created_at.year > 2024
    assert client(url, key).models.retrieve(model).id == model


def errors(url: str, key: str, model: str) -> None:
    asked = {"model": model, "max_tokens": 9, "messages": HI}
    create = client(url, key).messages.create
    for kind, wrong in (
        (anthropic.BadRequestError, {"max_tokens": -1}),
        (anthropic.NotFoundError, {"model": "x"}),
    ):
        error = refused(kind, create, **(asked | wrong))
        assert error.request_id
        assert error.body["type"] == "error"
    refused(anthropic.AuthenticationError, client(url, "wrong").messages.create, **asked)


run("anthropic", {"chat": chat, "stream": stream, "tools": tools, "tools, streamed": tools_stream,
                  "typed": typed, "count": count, "models": models, "errors": errors})  # fmt: skip
