"""What does not fit into a request, in one line that names it as its caller wrote it.

A field that the request's model has not is looked up in the API's lists (field_tables.py). What is accepted
without effect is noted in the request's scope, and told in a header of its answer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from octavo.errors import InvalidRequestError
from octavo.server.errors import short

SCOPE: ContextVar[Any] = ContextVar("scope", default=None)
"""The ASGI scope of the request that is read now; None: none is, so nobody is told what was ignored."""
IGNORED = "octavo.ignored"
"""Where a scope has the names of fields that were accepted without effect, in order (a dict of None)."""


def note(name: str) -> None:
    """A field of this request is accepted, and without effect."""
    if (scope := SCOPE.get()) is not None:
        scope.setdefault(IGNORED, {})[name] = None


def noted(name: str) -> AfterValidator:
    """Of a model's field that is without effect: note it where it is given."""

    def check(value: Any) -> Any:
        if value is not None:
            note(name)
        return value

    return AfterValidator(check)


def check_unknown(name: str, body: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """What a field stands for that the request's model has not: fields that it has, or none.

    A model may say as its `inside` which names belong into an object that is one of its fields.

    Args:
        body: the request's JSON object.

    Raises:
        UnsupportedError: a field that Octavo knows of but does not obey.
        InvalidRequestError: a field that nobody knows, with the likeliest one that was meant.
    """
    scope = SCOPE.get()
    lists = None if scope is None else scope["app"].state.field_lists.get(model.__name__)
    taken: dict[str, Any] | None = None if lists is None else lists.take(name, body)
    if taken is None:
        unknown(_unknown(name, model), name, name[:64])
    return taken or {}


def unknown(message: str, name: str, param: str) -> None:
    """A field that nobody reads: refused, or with --no-strict-fields noted.

    Raises:
        InvalidRequestError: it is refused.
    """
    scope = SCOPE.get()
    if scope is None or scope["app"].state.octavo.settings.strict_fields:
        raise InvalidRequestError(message, param)
    note(name)


def only_known(
    given: Mapping[str, Any], known: Iterable[str], where: str, param: str, ignored: Iterable[str] = ()
) -> None:
    """Raise if an object inside a request has a member that nobody reads; null is none.

    Args:
        where: the object, as the caller would write it.
        param: the request's field it belongs to.
        ignored: members that are accepted without effect.
    """
    names, advice = frozenset(known), frozenset(ignored)
    for key in given:
        if given[key] is None or key in names:
            continue
        if key in advice:
            note(f"{param}.{key}")
        else:
            unknown(f"unknown field {where}.{str(key)[:60]}", f"{param}.{key}", param)


def _unknown(name: str, model: type[BaseModel]) -> str:
    inside: Mapping[str, str] = getattr(model, "inside", {})
    hint = ""
    if name in inside:
        hint = f"; it belongs into {inside[name]!r}"
    elif close := difflib.get_close_matches(name[:64], sorted(model.model_fields), n=1):
        hint = f"; did you mean {close[0]!r}?"
    return f"unknown field {short(name)}{hint}"


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


def misfit(error: ValidationError, body: Any) -> InvalidRequestError:
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
        return InvalidRequestError(f"{where} must be {wanted}, not {json_type(first['input'])}", param)
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


def json_type(value: Any) -> str:
    names = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "a list"}
    return "null" if value is None else names.get(type(value), "an object")
