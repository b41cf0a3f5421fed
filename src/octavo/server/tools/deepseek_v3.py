"""DeepSeek V3, V3.1 and R1: a section of calls, each between markers of its own."""

# ruff: noqa: RUF001 (the markers are written with these very characters)

from __future__ import annotations

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, all_or_none, loads, tool_call

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE_BEGIN, _FENCE_END = "\n```json\n", "\n```"


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    calls: list[ToolCall | None] = []
    at = 0
    # Each marker is looked for behind the one before, so the block is read once, however many there are.
    while (begin := block.find(_BEGIN, at)) >= 0:
        separator = block.find(_SEPARATOR, begin)
        end = block.find(_END, separator) if separator >= 0 else -1
        if end < 0 or block[at:begin].strip():
            return None
        first = block[begin + len(_BEGIN) : separator]
        calls.append(_call(first, block[separator + len(_SEPARATOR) : end]))
        at = end + len(_END)
    return None if block[at:].strip() else all_or_none(calls)


def _call(first: str, second: str) -> ToolCall | None:
    name, fence, text = second.strip().partition(_FENCE_BEGIN)
    # V3: function<sep>name and a fenced block; V3.1: name<sep>JSON.
    if not (fence and name and "\n" not in name and text.endswith(_FENCE_END)):
        name, text = first, second
    else:
        text = text[: -len(_FENCE_END)]
    return tool_call(name.strip(), loads(text))


FORMAT = ToolFormat("deepseek_v3", (BEGIN,), END, parse, ("｜tool▁calls▁begin｜",), special=True)
