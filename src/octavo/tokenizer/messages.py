"""Chat messages as requests bring them, checked and made plain for templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Fresh copies with `content` a string (text parts joined by newlines, as vLLM does).

    Tool calls get their arguments parsed from JSON, which is what templates expect.

    Raises:
        InvalidRequestError: no list, an unknown role, content that is neither text nor text parts.
        UnsupportedError: image, audio or other parts.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise InvalidRequestError("messages must be a non-empty list", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise InvalidRequestError(f"{where} must be an object with role and content", "messages")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(f"{where}.role must be one of {', '.join(ROLES)}", "messages")
    plain = dict(message)
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    plain["content"] = _content(message.get("content"), where, may_be_empty=role == "assistant")
    return plain


def _content(content: Any, where: str, may_be_empty: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_be_empty:
        return ""
    if not isinstance(content, Sequence) or isinstance(content, bytes) or not content:
        raise InvalidRequestError(f"{where}.content must be a string or a list of text parts", "messages")
    return "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(kind, str) and kind != "text":
        raise UnsupportedError(f"{where}: parts of type {kind[:40]!r} are not supported yet", "messages")
    raise InvalidRequestError(f"{where} must be a part with type and text", "messages")


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequestError(f"{where} must be a list", "messages")
    plain: list[dict[str, Any]] = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(f"{where}[{i}].function must have a name", "messages")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _arguments(arguments, f"{where}[{i}]")
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain


def _arguments(text: str, where: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{where}.function.arguments is not JSON", "messages") from None
