"""Calls that max_tokens has cut, of formats that write them as JSON: as far as they were written."""

from __future__ import annotations

import re

from octavo.server.tools.base import DECODER, ToolCall, Tools, call_of, tool_call

_BEGUN = re.compile(
    r'\s*+\{\s*+"name"\s*+:\s*+"([^"\\]*+)"\s*+(?:,\s*+"(?:arguments|parameters)"\s*+:\s*+(.*))?', re.DOTALL
)
_SPACE = re.compile(r"\s++")
MAX_HEAD = 200
"""Characters in which an object shows its name."""


def begun_arguments(name: str, text: str, at: int) -> tuple[ToolCall | None, int]:
    """(the call whose arguments begin here, where they end): whole ones, or what there is of them."""
    space = _SPACE.match(text, at)
    begin = space.end() if space else at
    if begin == len(text):
        return ToolCall(name, "", cut=True), begin
    try:
        value, end = DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return (ToolCall(name, text[begin:], cut=True) if text[begin] == "{" else None), len(text)
    return tool_call(name, value), end


def begun_call(text: str, tools: Tools) -> list[ToolCall] | None:
    """The call whose beginning this is; none: no name yet; None: it can be no call of these tools."""
    found = _BEGUN.match(text)
    if found is None:
        head = _SPACE.sub("", text[:MAX_HEAD])
        wanted = ['{"name":"', *(f'{{"name":"{name}"' for name in tools)]
        return [] if any(each.startswith(head) for each in wanted) else None
    call, _ = begun_arguments(found[1], found[2] or "", 0)
    return None if call is None else [call]


def begun_objects(text: str, tools: Tools, end: str, joint: str = "") -> list[ToolCall] | None:
    """Calls in a row, as objects with name and arguments; the last one may be cut.

    Args:
        end: what may be behind them, or its beginning. joint: what may be between two.
    """
    calls: list[ToolCall] = []
    at = 0
    while True:
        rest = _SPACE.match(text, at)
        at = rest.end() if rest else at
        if joint and calls and text.startswith(joint, at):
            at += len(joint)
            continue
        if len(text) - at <= len(end) and end.startswith(text[at:]):  # or nothing is left
            return calls
        try:
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            last = begun_call(text[at:], tools)
            return None if last is None else calls + last
        call = call_of(value, "arguments", "parameters")
        if call is None:
            return None
        calls.append(call)
