"""What does not fit into a request, in one line that names it as its caller wrote it.

Fields of OpenAI's and vLLM's requests that Octavo does not obey are refused by name, never ignored. They are
let through where their value asks for nothing: null always, and the neutral values below.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.server.errors import short

NEUTRAL: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "reasoning": ({},),
    "safety_identifier": (),
    "truncation": ("disabled",),
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (),
    "chat_template": (),
    "parallel_tool_calls": (True,),
    "tool_choice": ("none",),
    "tools": ([],),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "metadata": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True, False),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "watermark": (False,),
    "web_search_options": (),
}


def check_unknown(name: str, body: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise unless a field that the endpoint does not obey asks for nothing.

    Args:
        body: the request's JSON object.
        known: the fields that the endpoint obeys.

    Raises:
        UnsupportedError: a field that Octavo knows of but does not obey.
        InvalidRequestError: a field that nobody knows, with the likeliest one that was meant.
    """
    value = body[name]
    if name == "best_of" and type(value) is int and value == (body.get("n") or 1):
        return
    if name not in NEUTRAL:
        raise InvalidRequestError(_unknown(name, known), name[:64])
    if not any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL[name]):
        raise UnsupportedError(_unsupported(name), name)


def only_known(given: Mapping[str, Any], known: Iterable[str], where: str, param: str) -> None:
    """Raise if an object inside a request has a member that nobody reads; null is none.

    Args:
        where: the object, as the caller would write it.
        param: the request's field it belongs to.
    """
    names = frozenset(known)
    for key in given:
        if given[key] is not None and key not in names:
            raise InvalidRequestError(f"unknown field {where}.{str(key)[:60]}", param)


def _unsupported(name: str) -> str:
    if name == "best_of":
        return "best_of is not supported yet in chats, unless it is the same integer as n"
    if name == "chat_template":
        return "chat_template is not taken from requests: set --chat-template when the server starts"
    return f"{name} is not supported yet"


def _unknown(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:64], sorted(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
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
