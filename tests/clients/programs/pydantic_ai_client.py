"""pydantic-ai: an agent with a tool, and typed answers."""

from __future__ import annotations

from typing import Any

from _features import ASK, DONE, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    city: str


def agents(url: str, key: str, model: str, **more: Any) -> list[Any]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=key)
    models = (OpenAIChatModel(model, provider=provider), OpenAIResponsesModel(model, provider=provider))
    return [Agent(each, **more) for each in models]


def chat(url: str, key: str, model: str) -> None:
    for agent in agents(url, key, model):
        assert agent.run_sync("Hi").output == "A short title"


async def stream(url: str, key: str, model: str) -> None:
    for agent in agents(url, key, model):
        async with agent.run_stream("Hi") as result:
            assert [part async for part in result.stream_text()][-1] == "A short title"


def tools(url: str, key: str, model: str) -> None:
    for agent in agents(url, key, model):

        @agent.tool_plain
        def echo(text: str) -> str:
            """Say a text."""
            return text

        assert agent.run_sync(ASK).output == DONE


def typed(url: str, key: str, model: str) -> None:
    for agent in agents(url, key, model, output_type=NativeOutput(City)):
        assert agent.run_sync("Hi").output == City(city="Paris")


run("pydantic-ai-slim", {"chat": chat, "stream": stream, "tools": tools, "typed": typed})
