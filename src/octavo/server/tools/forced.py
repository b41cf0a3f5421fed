"""tool_choice required or named: the answer is a JSON list of calls, made by a grammar."""

from __future__ import annotations

import json
from typing import Any

from octavo.server.tools.base import DECODER, ToolCall, ToolFormat, Tools, all_or_none, call_of
from octavo.server.tools.begun import begun_call
from octavo.server.tools.closed import closed


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    """The calls of a list; max_tokens may have cut the last one."""
    calls: list[ToolCall | None] = []
    at = 0
    while (begin := block.find("{", at)) >= 0:
        try:
            item, at = DECODER.raw_decode(block, begin)
        except json.JSONDecodeError:
            name = next(iter(tools)) if len(tools) == 1 else None
            calls += begun_call(block[begin:], tools) or ([ToolCall(name, "", cut=True)] if name else [])
            break
        except (ValueError, RecursionError):  # numbers that JSON cannot say, objects that are too deep
            break
        calls.append(call_of(item, "arguments"))
    return all_or_none(calls)


FORCED = ToolFormat("forced", ("[",), None, parse, (), only_first=True, keep_start=True, nothing_else=True)


def schema(tools: Tools, parallel: bool) -> dict[str, Any]:
    """The JSON schema of such a list: at least one call of one of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": closed(parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, parameters in tools.items()
    ]
    most = {} if parallel else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}
