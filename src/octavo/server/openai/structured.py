"""OpenAI's response_format, and what other servers' clients write into it."""

from __future__ import annotations

import json
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.params import StructuredOutputsParams


def from_response_format(given: Any) -> StructuredOutputsParams | None:
    """OpenAI's response_format; None for plain text.

    Also taken: a schema beside json_object, as `schema` or, as TGI's clients write it, `value`; and TGI's
    types json and regex, whose `value` is the schema, as an object or as text, or the expression.
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
        case "json":
            _only(given, "type", "value")
            return _json(_read(given.get("value")))
        case "regex":
            _only(given, "type", "value")
            if not isinstance(given.get("value"), str) or not given["value"]:
                raise _wrong("response_format.value must be a regular expression, as text")
            return StructuredOutputsParams(regex=given["value"])
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


def _read(schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"response_format.value is not valid JSON: {error}") from None


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
