"""A request body as its model, or one line that names the field that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError

from octavo.errors import InvalidRequestError
from octavo.server.errors import ApiError
from octavo.server.openai.fields import drop_neutral

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], body: bytes) -> Model:
    """A request body as a model of this type.

    Raises:
        ApiError, InvalidRequestError: not JSON, not an object, or a field that is unknown, not
            supported, or of the wrong type; the error names it.
    """
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, not {_json_type(value)}")
    fields = drop_neutral(value, model.model_fields)
    if isinstance(options := fields.get("stream_options"), dict):
        fields["stream_options"] = {k: v for k, v in options.items() if v is not None}
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _readable(first["type"], first["loc"], first["msg"], first["input"]) from None


_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def _readable(kind: str, loc: Sequence[int | str], message: str, value: Any) -> InvalidRequestError:
    """pydantic's error as one line that names the field the way a caller would write it."""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")[:100]
    param = str(loc[0]) if loc else None
    if kind == "missing":
        return InvalidRequestError(f"{where} is required", param)
    if kind == "extra_forbidden":
        return InvalidRequestError(f"unknown field {where!r}", param)
    if kind in _EXPECTED:
        return InvalidRequestError(f"{where} must be {_EXPECTED[kind]}, not {_json_type(value)}", param)
    if kind == "value_error":
        return InvalidRequestError(f"{where} {message.removeprefix('Value error, ')}", param)
    return InvalidRequestError(f"{where}: {message[:1].lower()}{message[1:]}", param)


def _json_type(value: Any) -> str:
    names = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")
