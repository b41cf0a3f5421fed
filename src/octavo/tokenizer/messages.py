"""Chat messages as requests bring them, checked and made plain for templates."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


KEYS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content", "reasoning",
     "annotations"}
)  # fmt: skip
"""What a message may hold. annotations: an answer's links, which its text has too."""

PART_KEYS = frozenset({"type", "text", "annotations", "logprobs", "cache_control"})
"""What a text part may hold: also what an answer's part had when it is sent back. cache_control: a wish that
the prefix cache fulfils unasked."""


def plain_messages(messages: Any, template: str = "") -> list[dict[str, Any]]:
    """Fresh copies with `content` a string (text parts joined by newlines, as vLLM does).

    Tool calls get their arguments parsed from JSON, which is what templates expect. An answer's
    refusal is its content. What is null is left out.

    Args:
        template: its source; a message may also hold what it speaks of.

    Raises:
        InvalidRequestError: no list, an unknown role, content that is neither text nor text parts, or
            a member that nobody would read.
        UnsupportedError: image, audio or other parts.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise InvalidRequestError("messages must be a non-empty list", "messages")
    return [_message(message, f"messages[{i}]", template) for i, message in enumerate(messages)]


def _message(message: Any, where: str, template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise InvalidRequestError(f"{where} must be an object with role and content", "messages")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(f"{where}.role must be one of {', '.join(ROLES)}", "messages")
    plain = {key: value for key, value in message.items() if value is not None}
    _only_known(plain, KEYS, where, template)
    for key in ("name", "tool_call_id", "refusal", "reasoning_content", "reasoning"):
        if not isinstance(plain.get(key, ""), str):
            raise InvalidRequestError(f"{where}.{key} must be a string", "messages")
    if plain.get("tool_calls"):
        plain["tool_calls"] = _tool_calls(plain["tool_calls"], f"{where}.tool_calls")
    refusal = plain.pop("refusal", None)
    given = plain.get("content")
    content = refusal if given in (None, "") and refusal else given
    plain["content"] = _content(content, where, may_be_empty=role == "assistant")
    if "reasoning" in plain and not _reads(template, "reasoning"):
        plain.setdefault("reasoning_content", plain.pop("reasoning"))
    return plain


def _only_known(given: Iterable[str], known: frozenset[str], where: str, template: str = "") -> None:
    for key in given:
        if key not in known and not _reads(template, key):
            raise InvalidRequestError(f"unknown field {where}.{key[:60]}", "messages")


def _reads(template: str, name: str) -> bool:
    """Whether the template asks a message for this member: by `message.name`, or by its name in quotes."""
    return name in _members(template)


@functools.lru_cache(8)  # a message may have as many members as it has bytes
def _members(template: str) -> frozenset[str]:
    return frozenset(re.findall(r"""(?<=[."'])[^\W\d]\w*""", template))


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
        _only_known((str(key) for key in part if part[key] is not None), PART_KEYS, where)
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
        _only_known(map(str, call), frozenset({"id", "type", "function", "index"}), f"{where}[{i}]")
        _only_known(map(str, function), frozenset({"name", "arguments"}), f"{where}[{i}].function")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _arguments(arguments, f"{where}[{i}]")
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain


def _arguments(text: str, where: str) -> Any:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{where}.function.arguments is not JSON", "messages") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where}.function.arguments must be a JSON object", "messages")
    return value
