"""Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>."""

from __future__ import annotations

import re
from typing import Any

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, dumps, loads

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    found = _FUNCTION.fullmatch(block)
    if found is None:
        return None
    name = found[1].strip()
    known = tools.get(name, {}).get("properties", {})
    arguments = {
        key.strip(): _value(text, known.get(key.strip())) for key, text in _PARAMETER.findall(found[2])
    }
    return [ToolCall(name, dumps(arguments))]


def _value(text: str, schema: Any) -> Any:
    """Strings stand bare; anything else is JSON, if it is."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    value = loads(text)
    return text if value is None and text.strip() != "null" else value


FORMAT = ToolFormat("qwen3_coder", ("<tool_call>",), "</tool_call>", parse, ("<function=",))
