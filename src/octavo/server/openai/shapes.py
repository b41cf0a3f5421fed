"""Lists and objects of a body that are read by hand, and what OpenAPI says of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

_MESSAGES_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]},
            "name": {"type": "string"},
        },
    },
}

_TOOL_CHOICE_SCHEMA = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {"type": {"const": "function"}, "function": {"type": "object"}},
        },
    ]
}

Messages = Annotated[list[Any], Field(json_schema_extra=_MESSAGES_SCHEMA)]
ToolChoice = Annotated[Any, Field(json_schema_extra=_TOOL_CHOICE_SCHEMA)]
