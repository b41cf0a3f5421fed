"""Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, all_or_none, loads, tool_call

_FUNCTION = re.compile(r"\s*+<function=([^>\n]++)>(.*)</function>\s*", re.DOTALL)
_BEGIN, _END = "<parameter=", "</parameter>"
_KEY_END = re.compile(r"[>\n]")


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    found = _FUNCTION.fullmatch(block)
    if found is None:
        return None
    name = found[1].strip()
    known = tools.get(name, {}).get("properties", {})
    arguments = {key: _value(text, known.get(key)) for key, text in _parameters(found[2])}
    return all_or_none([tool_call(name, arguments)])


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """(key, value) of each parameter; the text is read once, however many begin and do not end."""
    at = 0
    while (begin := text.find(_BEGIN, at)) >= 0:
        begin += len(_BEGIN)
        closed = _KEY_END.search(text, begin)
        if closed is None:
            return
        if closed[0] == "\n" or closed.start() == begin:  # no key; nor has what begins before this place one
            at = closed.end() if closed[0] == "\n" else begin
            continue
        end = text.find(_END, closed.end())
        if end < 0:
            return
        value = text[closed.end() : end].removeprefix("\n").removesuffix("\n")
        yield text[begin : closed.start()].strip(), value
        at = end + len(_END)


def _value(text: str, schema: Any) -> Any:
    """Strings stand bare; anything else is JSON, if it is."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    value = loads(text)
    return text if value is None and text.strip() != "null" else value


FORMAT = ToolFormat("qwen3_coder", ("<tool_call>",), "</tool_call>", parse, ("<function=",))
