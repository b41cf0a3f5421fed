"""DeepSeek V3, V3.1 and R1: a section of calls, each between markers of its own."""

# ruff: noqa: RUF001 (the markers are written with these very characters)

from __future__ import annotations

import re

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, all_or_none, dumps, loads

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_FENCE = re.compile(r"\s*([^\n]+)\n```json\n(.*)\n```\s*", re.DOTALL)


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    if _CALL.sub("", block).strip():
        return None
    return all_or_none([_call(*found) for found in _CALL.findall(block)])


def _call(first: str, second: str) -> ToolCall | None:
    fenced = _FENCE.fullmatch(second)  # V3: function<sep>name and a fenced block; V3.1: name<sep>JSON
    name, text = (fenced[1], fenced[2]) if fenced else (first, second)
    arguments = loads(text)
    return ToolCall(name.strip(), dumps(arguments)) if isinstance(arguments, dict) else None


FORMAT = ToolFormat("deepseek_v3", (BEGIN,), END, parse, ("｜tool▁calls▁begin｜",), special=True)
