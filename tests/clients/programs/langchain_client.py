"""langchain-openai and langchain-anthropic."""

from __future__ import annotations

from typing import Any

from _features import ASK, DONE, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    city: str


@tool
def echo(text: str) -> str:
    """Say a text."""
    return text


def models(url: str, key: str, model: str) -> list[Any]:
    openai = {"base_url": f"{url}/v1", "api_key": key, "model": model, "max_retries": 0}
    return [ChatOpenAI(**openai), ChatOpenAI(**openai, use_responses_api=True)]


def chat(url: str, key: str, model: str) -> None:
    for each in models(url, key, model):
        assert each.invoke("Hi").text == "A short title"


def stream(url: str, key: str, model: str) -> None:
    for each in models(url, key, model):
        assert "".join(part.text for part in each.stream("Hi")) == "A short title"


def tools(url: str, key: str, model: str) -> None:
    for each in models(url, key, model):
        messages: list[Any] = [HumanMessage(ASK)]
        while (answer := each.bind_tools([echo]).invoke(messages)).tool_calls:
            messages.append(answer)
            messages += [
                ToolMessage(call["args"]["text"], tool_call_id=call["id"]) for call in answer.tool_calls
            ]
        assert answer.text == DONE


def typed(url: str, key: str, model: str) -> None:
    for each in models(url, key, model):
        assert each.with_structured_output(City, method="json_schema").invoke("Hi") == City(city="Paris")


def embeddings(url: str, key: str, model: str) -> None:
    found = OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key=key, check_embedding_ctx_length=False)
    assert len(found.embed_documents(["a", "b"])) == 2


run("langchain-openai", {"chat": chat, "stream": stream, "tools": tools, "typed": typed,
                         "embeddings": embeddings})  # fmt: skip
