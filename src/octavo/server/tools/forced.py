"""tool_choice required or named: the answer is a JSON list of calls, made by a grammar."""

from __future__ import annotations

import json
import re
from typing import Any

from octavo.server.tools.base import DECODER, ToolCall, ToolFormat, Tools, all_or_none, call_of, tool_call
from octavo.server.tools.closed import closed

_BEGUN = re.compile(r'\{\s*"name"\s*:\s*"([^"]*)"\s*(?:,\s*"arguments"\s*:\s*(.*))?', re.DOTALL)


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    """The calls of a list; max_tokens may have cut the last one."""
    calls: list[ToolCall | None] = []
    at = 0
    while (begin := block.find("{", at)) >= 0:
        try:
            item, at = DECODER.raw_decode(block, begin)
        except json.JSONDecodeError:
            calls += _begun(block[begin:], tools)
            break
        except (ValueError, RecursionError):  # numbers that JSON cannot say, objects that are too deep
            break
        calls.append(call_of(item, "arguments"))
    return all_or_none(calls)


def _begun(text: str, tools: Tools) -> list[ToolCall | None]:
    """The call whose beginning this is, if its name is known, with as much of its arguments as there is."""
    found = _BEGUN.match(text)
    name = found[1] if found else next(iter(tools)) if len(tools) == 1 else None
    if name is None:
        return []
    arguments = (found and found[2]) or ""
    try:  # they may be whole, and only the call's own end is not there
        return [tool_call(name, DECODER.raw_decode(arguments)[0])]
    except (ValueError, RecursionError):
        return [ToolCall(name, arguments, cut=True)]


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
