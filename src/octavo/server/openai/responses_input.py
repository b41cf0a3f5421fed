"""A Responses request, and the chat that answers it: items to messages, flat tools to chat's tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.server.field_lists import MAX_TEXT
from octavo.server.field_tables import effort
from octavo.server.openai.body import Int, Strict
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.fields import note, noted, only_known
from octavo.server.openai.items import Item
from octavo.server.openai.sampling import shaping
from octavo.server.openai.shapes import MANY, MAX_SCHEMA, Tools, limited, values
from octavo.server.openai.structured import from_response_format

Message = dict[str, Any]

MAX_PAIRS, MAX_NAME, MAX_VALUE = 16, 64, 512
"""OpenAI's bounds of `metadata`: pairs, characters of a name, of a value."""


def _pairs(given: Any) -> Any:
    for name, value in given.items() if isinstance(given, dict) else ():
        if len(name) > MAX_NAME or not isinstance(value, str) or len(value) > MAX_VALUE:
            raise ValueError(
                f"takes names of at most {MAX_NAME} characters and texts of at most {MAX_VALUE} as values"
            )
    return given


def _included(names: list[str]) -> list[str]:
    if any("logprobs" in name for name in names):
        raise ValueError("cannot bring log-probabilities: chats and completions have them")
    return names


Text = Annotated[str, Field(max_length=MAX_TEXT)]
MAX_ADVICE = 64
"""JSON values in `reasoning`."""
Metadata = Annotated[dict[str, Any], BeforeValidator(_pairs), limited(MAX_PAIRS, "pairs")]
Items = Annotated[
    Any, Field(json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array"}]}), limited(MANY, "items")
]


class ResponsesRequest(Strict):
    """POST /v1/responses."""

    model: str | None = None
    input: Items
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    max_output_tokens: Int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: Int | None = None
    tools: Tools = Field(default=[])
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    text: Annotated[dict[str, Any] | None, values(MAX_SCHEMA)] = None
    metadata: Annotated[Metadata, noted("metadata")] = Field(default={})
    cache_salt: str | None = None
    priority: Int = 0
    watermark: bool | dict[str, Any] | None = None
    include: Annotated[list[str], limited(16), AfterValidator(_included), noted("include")] = Field(
        default=[]
    )
    max_tool_calls: Annotated[Int | None, noted("max_tool_calls")] = None
    prompt_cache_key: Annotated[Text | None, noted("prompt_cache_key")] = None
    reasoning: Annotated[dict[str, Any] | None, values(MAX_ADVICE)] = None
    safety_identifier: Annotated[Text | None, noted("safety_identifier")] = None
    service_tier: Annotated[Text | None, noted("service_tier")] = None
    truncation: Annotated[Literal["auto", "disabled"] | None, noted("truncation")] = None
    user: Annotated[Text | None, noted("user")] = None


def input_messages(given: Any) -> list[Message]:
    """The messages of `input`: text, or a list of items.

    Raises:
        InvalidRequestError, UnsupportedError: an item that is none, or of a kind that is not taken.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise InvalidRequestError("input must be a string or a non-empty list of items", "input")
    messages: list[Message] = []
    for i, item in enumerate(given):
        if not isinstance(item, dict):
            raise InvalidRequestError(f"input[{i}] must be an object", "input")
        _add(messages, item, f"input[{i}]")
    return messages


TOOL_ADVICE = ("allowed_callers", "cache_control", "defer_loading", "output_schema")
ITEM_KEYS = {
    "message": {"type", "role", "content", "id", "status"},
    "function_call": {"type", "name", "namespace", "arguments", "call_id", "id", "status"},
    "function_call_output": {"type", "output", "call_id", "id", "status", "name", "namespace"},
}


def _add(messages: list[Message], item: dict[str, Any], where: str) -> None:
    kind = str(item.get("type", "message"))
    only_known(item, ITEM_KEYS.get(kind, item), where, "input", ("caller", "phase"))
    match kind:
        case "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)  # made here, so nobody else has it
            else:
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        case "function_call_output":
            output = item.get("output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        case "reasoning":
            pass  # templates leave out what was thought in earlier turns
        case _:
            raise UnsupportedError(f"{where}: items of type {kind[:40]!r} are not supported", "input")


def as_message(items: Sequence[Item]) -> Message:
    """An answer as the assistant's message."""
    text = "".join(item.text for item in items if item.kind == "text")
    calls = [
        {"id": item.call_id, "type": "function",
         "function": {"name": item.call.name, "arguments": item.call.arguments}}
        for item in items
        if item.call is not None and not item.call.cut  # templates read arguments as JSON
    ]  # fmt: skip
    message: Message = {"role": "assistant", "content": text}
    return message | ({"tool_calls": calls} if calls else {})


def as_chat(body: ResponsesRequest, messages: Sequence[Message]) -> ChatRequest:
    """The chat that answers a Responses request.

    Raises:
        InvalidRequestError: a tool or the format of the text is malformed.
    """
    first = [{"role": "system", "content": body.instructions}] if body.instructions else []
    return ChatRequest(
        model=body.model,
        messages=[*first, *messages],
        max_tokens=body.max_output_tokens,
        stream=body.stream,
        seed=body.seed,
        tools=flat_tools(body.tools),
        tool_choice=_choice(body.tool_choice),
        chat_template_kwargs=_thinks(body.reasoning),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text),
        cache_salt=body.cache_salt,
        priority=body.priority,
        watermark=body.watermark,
        **shaping(body),
    )


def _tool(tool: Any, where: str) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise UnsupportedError(
            f"{where} of type {str(kind)[:40]!r} is not supported: only functions", "tools"
        )
    names = ("name", "description", "parameters", "strict")
    only_known(tool, ("type", *names), where, "tools", TOOL_ADVICE)
    return {"type": "function", "function": {n: tool[n] for n in names if tool.get(n) is not None}}


HOSTED = frozenset(
    {"web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "local_shell",
     "shell", "tool_search", "mcp", "apply_patch", "programmatic_tool_calling"}
)  # fmt: skip
"""Tools that the provider runs, or that only its models know: left out, and a header says so."""


def flat_tools(tools: Sequence[Any]) -> list[Any]:
    """Chat's tools: functions, those within namespaces too; hosted ones are left out.

    Raises:
        UnsupportedError: a tool of another type. InvalidRequestError: a malformed one.
    """
    found: list[Any] = []
    for i, tool in enumerate(tools):
        kind = str(tool.get("type")) if isinstance(tool, dict) else ""
        if kind == "namespace":
            found += [_tool(inner, f"tools[{i}].tools[{k}]") for k, inner in enumerate(_within(tool, i))]
        elif kind.split("_20")[0] in HOSTED:  # also those with a date: web_search_2025_08_26
            note(f"tools.type={kind}")
        else:
            found.append(_tool(tool, f"tools[{i}]"))
    return found


def namespaces(tools: Sequence[Any]) -> dict[str, str]:
    """The namespace of each function that stands in one."""
    spaces = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") == "namespace"]
    return {inner["name"]: str(space["name"]) for space in spaces for inner in space["tools"]}


def _within(space: dict[str, Any], i: int) -> list[Any]:
    """The tools of a namespace."""
    only_known(space, ("type", "name", "description", "tools"), f"tools[{i}]", "tools")
    if not isinstance(space.get("name"), str) or not isinstance(space.get("tools"), list):
        raise InvalidRequestError(f"tools[{i}]: a namespace has a name and a list of tools", "tools")
    found: list[Any] = space["tools"]
    return found


def _thinks(reasoning: dict[str, Any] | None) -> dict[str, Any]:
    given = {name: value for name, value in (reasoning or {}).items() if value is not None}
    wanted = given.pop("effort", None)
    for name in given:
        note(f"reasoning.{name}")
    return {} if wanted is None else effort(wanted, "reasoning.effort")


def _choice(choice: Any) -> Any:
    if choice == "auto":  # which is the default; clients say so without tools, too
        return None
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        chosen = choice.get("tools")
        flat = [_choice(each) for each in chosen] if isinstance(chosen, list) else chosen
        return {**choice, "tools": flat}
    if isinstance(choice, dict) and choice.get("type") == "function":
        only_known(choice, ("type", "name"), "tool_choice", "tool_choice")
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(text: Any) -> Any:
    """`text.format` as chat's response_format."""
    if text is None:
        return None
    given = text.get("format")
    only_known(text, ("format",), "text", "text", ("verbosity",))
    if given is None:
        return None
    if isinstance(given, dict) and given.get("type") == "json_schema":
        given = {"type": "json_schema", "json_schema": {k: v for k, v in given.items() if k != "type"}}
    try:
        from_response_format(given)
    except InvalidRequestError as error:
        flat = str(error).replace("response_format.json_schema", "response_format")
        raise InvalidRequestError(flat.replace("response_format", "text.format"), "text") from None
    return given
