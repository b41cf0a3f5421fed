"""openai-agents: an agent that calls its tool, over both of OpenAI's APIs."""

from __future__ import annotations

import openai
from _features import ASK, DONE, run
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai.types.shared import Reasoning
from pydantic import BaseModel


class City(BaseModel):
    city: str


@function_tool
def echo(text: str) -> str:
    """Say a text."""
    return text


def agent(kind: type, url: str, key: str, model: str, **more: object) -> Agent:
    set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    settings = ModelSettings(metadata={"a": "b"}, reasoning=Reasoning(effort="low"), store=False)
    return Agent(name="a", model=kind(model=model, openai_client=client), model_settings=settings, **more)


async def chat_tools(url: str, key: str, model: str) -> None:
    asked = agent(OpenAIChatCompletionsModel, url, key, model, tools=[echo])
    assert (await Runner.run(asked, ASK)).final_output == DONE


async def chat_stream(url: str, key: str, model: str) -> None:
    result = Runner.run_streamed(agent(OpenAIChatCompletionsModel, url, key, model, tools=[echo]), ASK)
    async for _ in result.stream_events():
        pass
    assert result.final_output == DONE


async def responses_tools(url: str, key: str, model: str) -> None:
    asked = agent(OpenAIResponsesModel, url, key, model, tools=[echo])
    assert (await Runner.run(asked, ASK)).final_output == DONE


async def responses_stream(url: str, key: str, model: str) -> None:
    result = Runner.run_streamed(agent(OpenAIResponsesModel, url, key, model, tools=[echo]), ASK)
    async for _ in result.stream_events():
        pass
    assert result.final_output == DONE


async def typed(url: str, key: str, model: str) -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        found = await Runner.run(agent(kind, url, key, model, output_type=City), "Hi")
        assert found.final_output == City(city="Paris")


run("openai-agents", {"tools": chat_tools, "tools, streamed": chat_stream, "responses": responses_tools,
                      "responses, tools streamed": responses_stream, "typed": typed})  # fmt: skip
