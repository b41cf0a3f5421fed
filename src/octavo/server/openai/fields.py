"""Fields of OpenAI's and vLLM's requests that Octavo does not obey: refused by name, never ignored.

A field is let through where its value asks for nothing: null always, and the neutral values below.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

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


def drop_neutral(body: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The fields that ask for something.

    Args:
        body: a request's JSON object.
        known: the fields that the endpoint obeys.

    Raises:
        UnsupportedError: a field that Octavo knows of but does not obey.
        InvalidRequestError: a field that nobody knows, with the likeliest one that was meant.
    """
    names = frozenset(known)
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        if name in names:
            kept[name] = value
        elif name == "best_of" and type(value) is int and value == (body.get("n") or 1):
            continue
        elif name not in NEUTRAL:
            raise InvalidRequestError(_unknown(name, names), name[:64])
        elif not any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL[name]):
            raise UnsupportedError(_unsupported(name), name)
    return kept


def only_known(given: Mapping[str, Any], known: Iterable[str], where: str, param: str) -> None:
    """Raise if an object inside a request has a member that nobody reads; null is none.

    Args:
        where: the object, as the caller would write it; param: the request's field it belongs to.
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


def _unknown(name: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(name[:64], sorted(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown field {short(name)}{hint}"
