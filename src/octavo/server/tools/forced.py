"""tool_choice required or named: the answer is a JSON list of calls, made by a grammar."""

from __future__ import annotations

from typing import Any

from octavo.server.tools.base import Call, Format, Tools, all_or_none, call_of, loads


def parse(block: str, tools: Tools) -> list[Call] | None:
    value = loads(block.strip())
    items = value if isinstance(value, list) else []
    return all_or_none([call_of(item, "arguments") for item in items])


FORMAT = Format("forced", ("[",), None, parse, (), only_first=True, keep_start=True)


def schema(tools: Tools, parallel: bool) -> dict[str, Any]:
    """The JSON schema of such a list: at least one call of one of the tools."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": parameters},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, parameters in tools.items()
    ]
    most = {} if parallel else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}
