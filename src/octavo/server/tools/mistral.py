"""Mistral: [TOOL_CALLS] and then a JSON list of calls, or name[ARGS]{...} for each of them."""

from __future__ import annotations

import re
from typing import Any

from octavo.server.tools.base import (
    DECODER,
    ToolCall,
    ToolFormat,
    Tools,
    all_or_none,
    call_of,
    loads,
    tool_call,
)
from octavo.server.tools.begun import begun_arguments, begun_objects

MARK = "[TOOL_CALLS]"
_WORD = re.compile(r"[\w.-]++")
MAX_MARKS = 64
"""Characters between a name and its arguments, an id among them."""
# No part gives back what it has taken: what follows it could not begin with it.
_NAME = re.compile(
    r"\s*+(?:\[TOOL_CALLS\]\s*+)?+([\w.-]++)\s*+(?:\[CALL_ID\]\w*+\s*+)?+(?:\[ARGS\])?+\s*+(?=\{)"
)


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    text = block.strip()
    if text.startswith("["):
        value = loads(text)
        items = value if isinstance(value, list) else []
        return all_or_none([call_of(item, "arguments", "parameters") for item in items])
    return all_or_none(_named(text))


def _named(text: str) -> list[ToolCall | None]:
    """Each call is read to the end of its object, so what its strings hold is no mark."""
    calls: list[ToolCall | None] = []
    at = 0
    while at < len(text):
        found = _NAME.match(text, at)
        if found is None:
            return [None]
        try:
            arguments: Any
            arguments, at = DECODER.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            return [None]
        calls.append(tool_call(found[1], arguments))
    return calls or [None]


def begun(block: str, tools: Tools) -> list[ToolCall] | None:
    text = block.strip()
    if text.startswith("[") and not MARK.startswith(text):
        return begun_objects(text[1:], tools, "]", ",")
    calls: list[ToolCall] = []
    at = 0
    while (found := _NAME.match(text, at)) is not None:
        call, at = begun_arguments(found[1], text, found.end())
        if call is None:
            return None
        calls.append(call)
    rest = text[at:].strip().removeprefix(MARK).strip()
    name = _WORD.match(rest)
    more = rest[name.end() :].strip() if name else rest
    if not name or not more:  # nothing yet, or a name that may go on
        viable = MARK.startswith(rest) or any(tool.startswith(rest) for tool in tools)
        return calls if viable else None
    behind = any(mark.startswith(more) or more.startswith(mark) for mark in ("[CALL_ID]", "[ARGS]"))
    return [*calls, ToolCall(name[0], "", cut=True)] if behind and len(more) < MAX_MARKS else None


FORMAT = ToolFormat("mistral", (MARK,), None, parse, (MARK,), begun, special=True, rank=1)
