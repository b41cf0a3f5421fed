"""Tools in chats: calls as requests bring them, checked and made plain for templates; and tools, calls and
results as text, for templates that know no tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.tokenizer.messages import only_known

MAX_DEPTH = 100
"""Of a call's arguments: templates and what looks for control tokens go down into them."""


def tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """A message's calls, their arguments as objects.

    Raises:
        InvalidRequestError: no calls, or arguments that are no JSON object, or too deep.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequestError(f"{where} must be a list", "messages")
    plain: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(f"{where}[{i}].function must have a name", "messages")
        only_known(map(str, call), frozenset({"id", "type", "function", "index"}), f"{where}[{i}]")
        only_known(map(str, function), frozenset({"name", "arguments"}), f"{where}[{i}].function")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _arguments(arguments, f"{where}[{i}]")
        elif not isinstance(arguments, (Mapping, type(None))):
            raise InvalidRequestError(f"{where}[{i}].function.arguments must be JSON in a string", "messages")
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain


def check_results(messages: Iterable[Any]) -> None:
    """Refuse a tool's result that answers no call of an earlier message.

    A result without an id answers whatever was called. What is malformed otherwise is not looked at here.

    Raises:
        InvalidRequestError: there is such a result.
    """
    made: set[str | None] = set()
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            continue
        if message.get("role") == "tool":
            name = message.get("tool_call_id")
            if not made:
                raise InvalidRequestError(
                    f"messages[{i}] is the result of a tool that was not called", "messages"
                )
            if isinstance(name, str) and name not in made and None not in made:
                raise InvalidRequestError(
                    f"messages[{i}].tool_call_id {name[:64]!r} is the id of no call before it", "messages"
                )
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            called = call.get("id") if isinstance(call, Mapping) else None
            made.add(called if isinstance(called, str) else None)


def _arguments(text: str, where: str) -> Any:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{where}.function.arguments is not JSON", "messages") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where}.function.arguments must be a JSON object", "messages")
    if deeper(value, MAX_DEPTH):
        raise InvalidRequestError(f"{where}.function.arguments is nested deeper than {MAX_DEPTH}", "messages")
    return value


def as_text(messages: Any, tools: Sequence[Mapping[str, Any]] | None) -> Any:
    """The messages with tools, their calls and results written out in the Hermes format."""
    if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
        return messages  # plain_messages() says what is wrong with them
    check_results(messages)
    plain = [_message_as_text(message) for message in messages]
    if not tools:
        return plain
    text = (
        "You can call these functions, given as JSON schemas:\n"
        + "\n".join(json.dumps(dict(tool)) for tool in tools)
        + "\nTo call one, answer with its name and arguments in this form:\n"
        + '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )
    if plain and plain[0].get("role") in ("system", "developer") and isinstance(plain[0].get("content"), str):
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _message_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    calls, content = message.get("tool_calls"), message.get("content")
    if isinstance(calls, list) and calls and isinstance(content, (str, type(None))):
        written = [
            f"<tool_call>\n{json.dumps(call.get('function'))}\n</tool_call>"
            for call in calls
            if isinstance(call, Mapping)
        ]
        return {**message, "content": "\n".join([*filter(None, [content]), *written])}
    if message.get("role") == "tool" and isinstance(content, str):
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    return dict(message)


def deeper(value: Any, most: int) -> bool:
    """Whether a JSON value is nested deeper than so many levels; a text or a number has none."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        level = [
            member
            for each in level
            for member in (each.values() if isinstance(each, dict) else each)
            if isinstance(member, (dict, list))
        ]
    return bool(level)
