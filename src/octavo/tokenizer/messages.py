"""Chat messages as requests bring them, checked and made plain for templates."""

from __future__ import annotations

import functools
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

PART_KEYS = frozenset({"type", "text", "annotations", "logprobs", "cache_control", "prompt_cache_breakpoint"})
"""What a text part may hold, an answer's too. The last two wishes the prefix cache fulfils unasked."""


def plain_messages(messages: Any, template: str = "") -> list[dict[str, Any]]:
    """Fresh copies with `content` a string (text parts joined by newlines, as vLLM does).

    Tool calls get their arguments parsed from JSON, which is what templates expect. An answer's
    refusal is its content. What is null is left out.

    Args:
        template: its source; a message may also hold what it speaks of.

    Raises:
        InvalidRequestError: no list, unknown roles, content that is no text, members that nobody reads.
        UnsupportedError: image, audio or other parts.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise InvalidRequestError("messages must be a non-empty list", "messages")
    plain = [_message(message, f"messages[{i}]", template) for i, message in enumerate(messages)]
    if any(message["role"] == "tool" for message in plain):
        from octavo.tokenizer.message_calls import check_results

        check_results(plain)
    return plain


def _message(message: Any, where: str, template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not all(isinstance(key, str) for key in message):
        raise InvalidRequestError(f"{where} must be an object with role and content", "messages")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(f"{where}.role must be one of {', '.join(ROLES)}", "messages")
    plain = {key: value for key, value in message.items() if value is not None}
    only_known(plain, KEYS, where, template)
    for key in ("name", "tool_call_id", "refusal", "reasoning_content", "reasoning"):
        if not isinstance(plain.get(key, ""), str):
            raise InvalidRequestError(f"{where}.{key} must be a string", "messages")
    if plain.get("tool_calls"):
        from octavo.tokenizer.message_calls import tool_calls

        plain["tool_calls"] = tool_calls(plain["tool_calls"], f"{where}.tool_calls")
    refusal = plain.pop("refusal", None)
    given = plain.get("content")
    content = refusal if given in (None, "") and refusal else given
    plain["content"] = _content(content, where, may_be_empty=role == "assistant")
    if "reasoning" in plain and not _reads(template, "reasoning"):
        plain.setdefault("reasoning_content", plain.pop("reasoning"))
    return plain


def only_known(given: Iterable[str], known: frozenset[str], where: str, template: str = "") -> None:
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
    key = "refusal" if kind == "refusal" else "text"  # an answer may be one, and be sent back
    if kind in ("text", "input_text", "output_text", "refusal") and isinstance(part.get(key), str):
        only_known((str(each) for each in part if part[each] is not None), PART_KEYS | {key}, where)
        return str(part[key])
    if isinstance(kind, str) and kind != "text":
        raise UnsupportedError(f"{where}: parts of type {kind[:40]!r} are not supported yet", "messages")
    raise InvalidRequestError(f"{where} must be a part with type and text", "messages")
