"""Hermes, Qwen 2.5 and 3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

import json

from octavo.server.tools.base import (
    ToolCall,
    ToolFormat,
    Tools,
    all_or_none,
    call_of,
    in_string,
    loads,
)
from octavo.server.tools.begun import begun_objects


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    return all_or_none([call_of(loads(block), "arguments", "parameters")])


def begun(block: str, tools: Tools) -> list[ToolCall] | None:
    return begun_objects(block, tools, "</tool_call>")


def strict(name: str) -> tuple[str, str]:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ', "}\n</tool_call>"


FORMAT = ToolFormat(
    "hermes",
    ("<tool_call>",),
    "</tool_call>",
    parse,
    ("<tool_call>",),
    begun,
    quotes=in_string,
    strict=strict,
    rank=2,
)
