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

MARK = "[TOOL_CALLS]"
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


FORMAT = ToolFormat("mistral", (MARK,), None, parse, (MARK,), special=True, rank=1)
