"""A request body as its model, or one line that names the field that does not fit."""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

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
        raise _readable(error, fields) from None


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


def _readable(error: ValidationError, body: Any) -> InvalidRequestError:
    """pydantic's first error as one line that names the field the way a caller would write it."""
    every = error.errors(include_url=False, include_context=False)
    first = every[0]
    kind, message, path = first["type"], first["msg"], _path(first, body)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")[:100]
    param = str(path[0]) if path else None
    if kind == "missing":
        return InvalidRequestError(f"{where} is required", param)
    if kind == "extra_forbidden":
        return InvalidRequestError(f"unknown field {where!r}", param)
    # Of a union each member has an error of its own: all of them are what would be taken.
    expected = [_expected(each) for each in every if _path(each, body) == path]
    if kind in _EXPECTED and None not in expected:
        wanted = " or ".join(dict.fromkeys(filter(None, expected)))
        return InvalidRequestError(f"{where} must be {wanted}, not {_json_type(first['input'])}", param)
    if kind == "value_error":
        return InvalidRequestError(f"{where} {message.removeprefix('Value error, ')}", param)
    return InvalidRequestError(f"{where}: {message[:1].lower()}{message[1:]}", param)


def _expected(error: ErrorDetails) -> str | None:
    if error["type"] == "literal_error":
        return error["msg"].removeprefix("Input should be ")
    return _EXPECTED.get(error["type"])


def _path(error: ErrorDetails, body: Any) -> list[int | str]:
    """An error's place in the body, without the names that pydantic gives to a union's members."""
    path: list[int | str] = []
    last = len(error["loc"]) - 1
    for at, part in enumerate(error["loc"]):
        if isinstance(body, dict) and (part in body or (at == last and error["type"] == "missing")):
            body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int) and part < len(body):
            body = body[part]
        else:
            continue
        path.append(part)
    return path


def _json_type(value: Any) -> str:
    names = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")
