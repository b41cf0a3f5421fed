"""langchain-anthropic."""

from __future__ import annotations

from typing import Any

from _features import ASK, DONE, run
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool


@tool
def echo(text: str) -> str:
    """Say a text."""
    return text


def anthropic(url: str, key: str, model: str) -> ChatAnthropic:
    return ChatAnthropic(base_url=url, api_key=key, model=model, max_tokens=999, max_retries=0)


def chat(url: str, key: str, model: str) -> None:
    assert anthropic(url, key, model).invoke("Hi").text == "A short title"


def stream(url: str, key: str, model: str) -> None:
    parts = anthropic(url, key, model).stream("Hi")
    assert "".join(part.text for part in parts) == "A short title"


def tools(url: str, key: str, model: str) -> None:
    asked = anthropic(url, key, model).bind_tools([echo])
    messages: list[Any] = [HumanMessage(ASK)]
    while (answer := asked.invoke(messages)).tool_calls:
        messages.append(answer)
        messages += [ToolMessage(call["args"]["text"], tool_call_id=call["id"]) for call in answer.tool_calls]
    assert answer.text == DONE


run("langchain-anthropic", {"chat": chat, "stream": stream, "tools": tools})
