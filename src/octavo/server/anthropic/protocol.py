"""Requests of /v1/messages, and the chat that answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import MAX_STOP_STRINGS
from octavo.server.field_tables import effort
from octavo.server.openai.body import Int, Strict
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.fields import note, only_known
from octavo.server.openai.sampling import shaping
from octavo.server.openai.shapes import MANY, MAX_SCHEMA, Texts, Tools, limited, values
from octavo.server.openai.tool_use import check_name
from octavo.server.tools.base import dumps

Message = dict[str, Any]


BLOCK_KEYS = {
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}
"""is_error: the content says it, too."""
BLOCK_ADVICE = ("cache_control", "citations", "caller")

TOOL_KEYS = ("type", "name", "description", "input_schema", "strict")
TOOL_ADVICE = ("allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "input_examples")
HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
"""What the types of tools begin with that the provider runs: left out, and said in the answer's header."""
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
    output_config: Annotated[dict[str, Any], values(MAX_SCHEMA)] = Field(default_factory=dict)
    watermark: bool | dict[str, Any] | None = None


class CountTokensRequest(MessagesRequest):
    """POST /v1/messages/count_tokens: the same, without an answer."""

    max_tokens: Int = 1


def as_chat(body: MessagesRequest) -> ChatRequest:
    """The chat that answers it.

    Raises:
        InvalidRequestError, UnsupportedError: a message or tool that is none, or not taken.
    """
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
        blocks = body.system if isinstance(body.system, list) else []
        if any(isinstance(block, dict) and block.get("cache_control") for block in blocks):
            note("system.cache_control")
    for i, message in enumerate(body.messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant") and not (role == "system" and messages):
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
        tools=_tools(body.tools),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        continue_final_message=prefill,
        watermark=body.watermark,
        **_output(body.output_config),
        **shaping(body),
    )


def _messages(message: Message, where: str) -> list[Message]:
    """One message of theirs: results of tools become messages of their own."""
    role, content = message["role"], message.get("content")
    only_known(message, ("role", "content"), where, "messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or (not content and role != "assistant"):
        raise InvalidRequestError(f"{where}.content must be a string or a list of blocks", "messages")
    results: list[Message] = []
    texts: list[str] = []
    calls: list[Message] = []
    for i, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in BLOCK_KEYS:
            only_known(block, BLOCK_KEYS[kind], f"{where}.content[{i}]", "messages", BLOCK_ADVICE)
        if kind == "text":  # texts become lines of one text
            if not isinstance(block.get("text"), str):
                raise InvalidRequestError(f"{where}.content[{i}].text must be a string", "messages")
            texts.append(block["text"])
        elif kind == "tool_use" and role == "assistant":  # a call that the model made in an earlier turn
            function = {"name": block.get("name"), "arguments": dumps(block.get("input", {}))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":  # OpenAI's role "tool": a message of its own
            if not isinstance(block.get("tool_use_id"), str):
                raise InvalidRequestError(f"{where}.content[{i}].tool_use_id must be a string", "messages")
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
    return [*results, rest] if texts or calls or not content else results


def _result(block: Message) -> str:
    content = block.get("content", "")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
        raise UnsupportedError("tool_result: only text is supported", "messages")
    return "\n".join(part["text"] for part in parts)


def folded(messages: Sequence[Message]) -> list[Message]:
    """The conversation for a template that takes a system message at the beginning alone.

    A later one is said by the user, in the same turn as what stands before it or after it.
    """
    found: list[Message] = []
    for i, message in enumerate(messages):
        said = {**message, "role": "user"} if i and message["role"] == "system" else dict(message)
        last = found[-1] if found else {}
        if said["role"] == "user" == last.get("role"):
            last["content"] = f"{last['content']}\n\n{said['content']}"
        else:
            found.append(said)
    return found


def _output(config: Mapping[str, Any]) -> dict[str, Any]:
    """What output_config asks of the chat: a form of the answer, an effort of the template's."""
    only_known(config, ("format", "effort"), "output_config", "output_config")
    wanted: dict[str, Any] = {}
    if config.get("effort") is not None:
        wanted["chat_template_kwargs"] = effort(config["effort"], "output_config.effort")
    if (given := config.get("format")) is not None:
        if not isinstance(given, dict) or given.get("type") != "json_schema" or "schema" not in given:
            raise InvalidRequestError(
                "output_config.format must be of type json_schema, with a schema", "output_config"
            )
        only_known(given, ("type", "schema", "name"), "output_config.format", "output_config")
        schema = {"name": "answer", "schema": given["schema"]}
        wanted["response_format"] = {"type": "json_schema", "json_schema": schema}
    return wanted


def _tools(tools: Sequence[Any]) -> list[Message]:
    """Chat's tools; what the provider would run is left out."""
    found: list[Message] = []
    for i, tool in enumerate(tools):
        kind = str(tool.get("type") or "custom") if isinstance(tool, dict) else ""
        if kind.startswith(HOSTED):
            note(f"tools.type={kind}")
        else:
            found.append(_tool(tool, kind, f"tools[{i}]"))
    return found


def _tool(tool: Any, kind: str, where: str) -> Message:
    if kind != "custom":
        raise UnsupportedError(f"{where}: only tools with an input_schema are supported", "tools")
    only_known(tool, TOOL_KEYS, where, "tools", TOOL_ADVICE)
    check_name(tool.get("name"), f"{where}.name")
    if not isinstance(tool.get("input_schema"), dict):
        raise InvalidRequestError(f"{where}.input_schema must be an object", "tools")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    for name in ("description", "strict"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def _choice(choice: Message | None) -> tuple[Any, bool]:
    """(chat's tool_choice, parallel_tool_calls)."""
    if choice is None:
        return None, True
    kind, single = choice.get("type"), choice.get("disable_parallel_tool_use")
    if isinstance(kind, str) and kind in CHOICE_KEYS:
        only_known(choice, CHOICE_KEYS[kind], "tool_choice", "tool_choice")
    if not isinstance(single, (bool, type(None))):
        raise InvalidRequestError(
            "tool_choice.disable_parallel_tool_use must be true or false", "tool_choice"
        )
    parallel = not single
    match kind:
        case "auto":  # which is the default; it says nothing where there are no tools
            return None, parallel
        case "none":
            return "none", parallel
        case "any":
            return "required", parallel
        case "tool":
            return {"type": "function", "function": {"name": choice.get("name")}}, parallel
    raise InvalidRequestError("tool_choice.type must be auto, any, tool or none", "tool_choice")
