"""Lists and objects of a body: their bounds, and what OpenAPI says of those that are read by hand.

A bound is looked at before any member is, and the first member of a wrong type is the only one that is
named: an error for each of a million members would take a gigabyte.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from octavo.server.openai.body import integral

MANY = 1 << 16
"""Most members of a list that is bounded more closely elsewhere, such as by the context."""
MAX_VARIABLES = 1024
"""JSON values in what a request may hand to the chat template."""
MAX_SCHEMA = 100_000
"""JSON values in schemas and tools. Whoever compiles a schema takes no more characters than twice as many."""

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


_STOP_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

_RESPONSE_FORMAT_SCHEMA = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]}},
}


def holds_more(value: Any, most: int) -> bool:
    """Whether a JSON value is made of more than so many values; no more of them are looked at."""
    waiting = [value]
    for _ in range(most):
        if not waiting:
            return False
        each = waiting.pop()
        if isinstance(each, (list, dict)):
            if len(waiting) + len(each) > most:
                return True
            waiting += each.values() if isinstance(each, dict) else each
    return bool(waiting)


def limited(most: int, what: str = "members") -> BeforeValidator:
    """Of a list or an object: refuse more than so many members."""

    def check(value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > most:
            raise ValueError(f"takes at most {most} {what}")
        return value

    return BeforeValidator(check)


def values(most: int) -> BeforeValidator:
    """Of any JSON value: refuse one that is made of more than so many."""

    def check(value: Any) -> Any:
        if holds_more(value, most):
            raise ValueError(f"takes at most {most} values, nested ones included")
        return value

    return BeforeValidator(check)


def _integrals(value: Any) -> Any:
    """8.0 is an integer in a list, too, which may be long."""
    floats = isinstance(value, list) and float in set(map(type, value))
    return list(map(integral, value)) if floats else value


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ValueError("must be a string or a list of strings")


Ids = Annotated[list[int], Field(fail_fast=True), BeforeValidator(_integrals)]
Texts = Annotated[list[str], Field(fail_fast=True), limited(MANY)]
Messages = Annotated[list[Any], Field(json_schema_extra=_MESSAGES_SCHEMA, max_length=MANY)]
Variables = Annotated[dict[str, Any], values(MAX_VARIABLES)]
Tools = Annotated[list[Any], values(MAX_SCHEMA)]
ToolChoice = Annotated[Any, Field(json_schema_extra=_TOOL_CHOICE_SCHEMA)]
Stops = Annotated[Any, BeforeValidator(_strings), Field(json_schema_extra=_STOP_SCHEMA)]
Schema = Annotated[dict[str, Any] | str | bool | None, values(MAX_SCHEMA)]
ResponseFormat = Annotated[Any, Field(json_schema_extra=_RESPONSE_FORMAT_SCHEMA), values(MAX_SCHEMA)]
