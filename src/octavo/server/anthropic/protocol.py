"""Requests of /v1/messages, and the chat that answers them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import MAX_STOP_STRINGS
from octavo.server.openai.body import Int, Strict
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.fields import only_known
from octavo.server.openai.sampling import shaping
from octavo.server.openai.shapes import MANY, Texts, Tools, limited
from octavo.server.tools.base import dumps

Message = dict[str, Any]


BLOCK_KEYS = {
    "text": {"type", "text", "cache_control", "citations"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
}
"""cache_control: a wish that the prefix cache fulfils unasked; is_error: the content says it, too."""

TOOL_KEYS = ("type", "name", "description", "input_schema", "cache_control")
CHOICE_KEYS = {
    "auto": ("type", "disable_parallel_tool_use"),
    "any": ("type", "disable_parallel_tool_use"),
    "tool": ("type", "name", "disable_parallel_tool_use"),
    "none": ("type",),
}


class MessagesRequest(Strict):
    """POST /v1/messages."""

    model: str | None = None
    messages: Annotated[list[Any], limited(MANY, "messages")]
    max_tokens: Int
    system: Annotated[str | list[Any] | None, limited(MANY)] = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int = 0
    stop_sequences: Annotated[Texts, limited(MAX_STOP_STRINGS, "strings")] = Field(default_factory=list)
    stream: bool = False
    tools: Tools = Field(default_factory=list)
    tool_choice: dict[str, Any] | None = None
    metadata: Annotated[dict[str, Any], limited(16, "pairs")] = Field(default_factory=dict)


def as_chat(body: MessagesRequest) -> ChatRequest:
    """The chat that answers it.

    Raises:
        InvalidRequestError, UnsupportedError: a message or tool that is none, or not taken.
    """
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    for i, message in enumerate(body.messages):
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise InvalidRequestError(f"messages[{i}].role must be user or assistant", "messages")
        messages += _messages(message, f"messages[{i}]")
    prefill = bool(messages) and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    choice, parallel = _choice(body.tool_choice)
    return ChatRequest(
        model=body.model,
        messages=messages,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        tools=[_tool(tool, i) for i, tool in enumerate(body.tools)],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        continue_final_message=prefill,
        **shaping(body),
    )


def _messages(message: Message, where: str) -> list[Message]:
    """One message of theirs: results of tools become messages of their own."""
    role, content = message["role"], message.get("content")
    only_known(message, ("role", "content"), where, "messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not content:
        raise InvalidRequestError(f"{where}.content must be a string or a list of blocks", "messages")
    results: list[Message] = []
    texts: list[str] = []
    calls: list[Message] = []
    for i, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in BLOCK_KEYS:
            only_known(block, BLOCK_KEYS[kind], f"{where}.content[{i}]", "messages")
        if kind == "text" and isinstance(block.get("text"), str):  # texts become lines of one text
            texts.append(block["text"])
        elif kind == "tool_use" and role == "assistant":  # a call that the model made in an earlier turn
            function = {"name": block.get("name"), "arguments": dumps(block.get("input", {}))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":  # OpenAI's role "tool": a message of its own
            found = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block)}
            results.append(found)
        elif kind in ("thinking", "redacted_thinking") and role == "assistant":
            continue  # templates leave out what was thought in earlier turns
        else:
            raise UnsupportedError(
                f"{where}.content[{i}]: blocks of type {str(kind)[:40]!r} are not supported", "messages"
            )
    rest: Message = {"role": role, "content": "\n".join(texts)}
    if calls:
        rest["tool_calls"] = calls
    return [*results, rest] if texts or calls else results


def _result(block: Message) -> str:
    content = block.get("content", "")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
        raise UnsupportedError("tool_result: only text is supported", "messages")
    return "\n".join(part["text"] for part in parts)


def _tool(tool: Any, i: int) -> Message:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        raise UnsupportedError(f"tools[{i}]: only tools with an input_schema are supported", "tools")
    only_known(tool, TOOL_KEYS, f"tools[{i}]", "tools")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(choice: Message | None) -> tuple[Any, bool]:
    """(chat's tool_choice, parallel_tool_calls)."""
    if choice is None:
        return None, True
    kind, single = choice.get("type"), choice.get("disable_parallel_tool_use")
    if kind in CHOICE_KEYS:
        only_known(choice, CHOICE_KEYS[kind], "tool_choice", "tool_choice")
    if not isinstance(single, (bool, type(None))):
        raise InvalidRequestError(
            "tool_choice.disable_parallel_tool_use must be true or false", "tool_choice"
        )
    parallel = not single
    match kind:
        case "auto" | "none":
            return choice["type"], parallel
        case "any":
            return "required", parallel
        case "tool":
            return {"type": "function", "function": {"name": choice.get("name")}}, parallel
    raise InvalidRequestError("tool_choice.type must be auto, any, tool or none", "tool_choice")
