"""DeepSeek V3, V3.1 and R1: a section of calls, each between markers of its own."""

# ruff: noqa: RUF001 (the markers are written with these very characters)

from __future__ import annotations

import re

from octavo.server.tools.base import (
    DECODER,
    ToolCall,
    ToolFormat,
    Tools,
    all_or_none,
    in_string,
    tool_call,
)
from octavo.server.tools.begun import begun_arguments

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCED = re.compile(r"\s*+([^\n]{1,128}+)\n```json\n")
_SPACE = re.compile(r"\s*+")
_CLOSED = {fenced: re.compile(rf"\s*+{'```' * fenced}\s*+{re.escape(_END)}") for fenced in (False, True)}


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    calls: list[ToolCall | None] = []
    at = 0
    # Each marker is looked for behind the one before, so the block is read once, however many there are.
    while (begin := block.find(_BEGIN, at)) >= 0:
        separator = block.find(_SEPARATOR, begin)
        if separator < 0 or block[at:begin].strip():
            return None
        call, at = _call(block, begin + len(_BEGIN), separator)
        if at < 0:
            return None
        calls.append(call)
    return None if block[at:].strip() else all_or_none(calls)


def _call(block: str, begin: int, separator: int) -> tuple[ToolCall | None, int]:
    """(call, where it ends); -1: nowhere. V3: function<sep>name and a fenced block; V3.1: name<sep>JSON."""
    name, at = block[begin:separator], separator + len(_SEPARATOR)
    fenced = _FENCED.match(block, at)
    if fenced is not None:
        name, at = fenced[1], fenced.end()
    try:  # to the end of the object: its strings may hold marks
        spaces = _SPACE.match(block, at)
        arguments, at = DECODER.raw_decode(block, spaces.end() if spaces else at)
    except (ValueError, RecursionError):
        return None, -1
    end = _CLOSED[fenced is not None].match(block, at)
    return tool_call(name.strip(), arguments), -1 if end is None else end.end()


def begun(block: str, tools: Tools) -> list[ToolCall] | None:
    calls: list[ToolCall] = []
    at = 0
    while (begin := block.find(_BEGIN, at)) >= 0:
        separator = block.find(_SEPARATOR, begin)
        if separator < 0:  # the name may go on
            name, _, mark = block[begin + len(_BEGIN) :].strip().partition("<")
            known = any(tool.startswith(name) for tool in ("function", *tools))
            return calls if known and _SEPARATOR.startswith(f"<{mark}") else None
        call, end = _call(block, begin + len(_BEGIN), separator)
        if call is None or end < 0:
            last = _begun(block, block[begin + len(_BEGIN) : separator].strip(), separator, tools)
            return None if last is None else calls + last
        calls.append(call)
        at = end
    rest = block[at:].strip()
    return calls if any(mark.startswith(rest) for mark in (_BEGIN, END)) else None


def _begun(block: str, name: str, separator: int, tools: Tools) -> list[ToolCall] | None:
    """The call that is cut behind this separator; V3 has its name there."""
    at = separator + len(_SEPARATOR)
    fenced = _FENCED.match(block, at)
    if fenced is None and name == "function" and "function" not in tools:
        said, line, fence = block[at:].lstrip().partition("\n")
        if not "```json\n".startswith(fence) or not any(tool.startswith(said) for tool in tools):
            return None
        return [ToolCall(said, "", cut=True)] if line else []
    if fenced is not None:
        name, at = fenced[1].strip(), fenced.end()
    call, _ = begun_arguments(name, block, at)
    return None if call is None else [call]


FORMAT = ToolFormat(
    "deepseek_v3", (BEGIN,), END, parse, ("｜tool▁calls▁begin｜",), begun, quotes=in_string, special=True
)
