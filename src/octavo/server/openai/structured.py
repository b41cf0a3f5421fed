"""OpenAI's response_format, and what other servers' clients write into it."""

from __future__ import annotations

from typing import Any

from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams


def from_response_format(given: Any) -> StructuredOutputsParams | None:
    """OpenAI's response_format; None for plain text.

    Also taken: a schema beside json_object, as `schema` or, as TGI's clients write it, `value`.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    schema: Any
    match kind:
        case "text":
            _only(given, "type")
            return None
        case "json_object":
            _only(given, "type", "schema", "value")
            schema = given.get("schema", given.get("value"))
            return StructuredOutputsParams(json_object=True) if schema is None else _json(schema)
        case "json_schema":
            _only(given, "type", "json_schema")
            inner = given.get("json_schema")
            if not isinstance(inner, dict) or "schema" not in inner:
                raise _wrong("response_format.json_schema must be an object with a schema")
            for name in inner:
                if name not in ("name", "description", "schema", "strict"):
                    raise _wrong(f"unknown field response_format.json_schema.{name[:60]}")
            return _json(inner["schema"])
        case "structural_tag":
            return StructuredOutputsParams(structural_tag={**given})
    raise _wrong("response_format.type must be text, json_object, json_schema or structural_tag")


def _json(schema: Any) -> StructuredOutputsParams:
    if not isinstance(schema, (dict, bool)):
        raise _wrong("response_format: the schema must be an object")
    return StructuredOutputsParams(json=schema)


def _only(given: dict[str, Any], *names: str) -> None:
    for name in given:
        if name not in names:
            raise _wrong(f"unknown field response_format.{name[:60]}")


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, "response_format")
