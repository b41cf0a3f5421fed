"""Mistral: [TOOL_CALLS] and then a JSON list of calls, or name[ARGS]{...} for each of them."""

from __future__ import annotations

import json
import re
from typing import Any

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, all_or_none, call_of, dumps, loads

MARK = "[TOOL_CALLS]"
_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w*\s*)?(?:\[ARGS\])?\s*(?=\{)")


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    text = block.strip()
    if text.startswith("["):
        value = loads(text)
        items = value if isinstance(value, list) else []
        return all_or_none([call_of(item, "arguments", "parameters") for item in items])
    return all_or_none([call for each in text.split(MARK) for call in _named(each)])


def _named(text: str) -> list[ToolCall | None]:
    calls: list[ToolCall | None] = []
    rest = text.strip()
    while rest:
        found = _NAME.match(rest)
        try:
            arguments: Any
            arguments, end = json.JSONDecoder().raw_decode(rest, found.end() if found else 0)
        except (ValueError, RecursionError):
            return [None]
        calls.append(ToolCall(found[1], dumps(arguments)) if found and isinstance(arguments, dict) else None)
        rest = rest[end:].strip()
    return calls or [None]


FORMAT = ToolFormat("mistral", (MARK,), None, parse, (MARK,), special=True, rank=1)
