"""How servers are asked. Each file of this folder has one API, and is found by being there."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.errors import InvalidRequestError

MOST = 1 << 40
"""Tokens: nobody has counted more of one answer."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a stream says.

    Attributes:
        has_text: whether it brings something of the answer.
        tokens, prompt_tokens: of the whole answer and its prompt, where it says so.
        cached_tokens: of the prompt, those that were not computed again; as far as it says so.
        error: what it says instead.
    """

    has_text: bool
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Api:
    """One way to ask.

    Attributes:
        names: of --backend; the first is its own.
        body: what is sent for a call. read: what a data line of the answer says.
        ends_with: the last line's data; None: the end of the answer is its end.
    """

    names: tuple[str, ...]
    path: str
    body: Callable[[LoadRequest, Asked], Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], Piece]
    ends_with: bytes | None


def find() -> dict[str, Api]:
    """Every API by each of its names."""
    files = [importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
    return {name: file.API for file in files for name in file.API.names}


def api_of(name: str) -> Api:
    """
    Raises:
        InvalidRequestError: there is none of this name; the message has those that there are.
    """
    every = find()
    if name not in every:
        raise InvalidRequestError(f"--backend knows {', '.join(sorted(every))}, and not {name!r}")
    return every[name]


def error_of(event: Mapping[str, Any]) -> str | None:
    """The message of an event that is an error; None: it is none."""
    said = event.get("error")
    if not said:
        return None
    text = said.get("message") if isinstance(said, Mapping) else said
    return f"the stream ended with an error: {' '.join(str(text).split())[:200]}"


def count_of(usage: object, name: str) -> int | None:
    """A number of tokens that a server has counted; None: there is none, or it is none."""
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


def cached_of(usage: object) -> int | None:
    """Tokens of a prompt that came from the server's cache, as OpenAI's usage has them; None: not said."""
    return (
        count_of(usage.get("prompt_tokens_details"), "cached_tokens") if isinstance(usage, Mapping) else None
    )


def piece_of(has_text: bool, event: Mapping[str, Any]) -> Piece:
    """An event of one of OpenAI's streams, with the counts of its usage."""
    usage = event.get("usage")
    tokens, prompt_tokens = count_of(usage, "completion_tokens"), count_of(usage, "prompt_tokens")
    return Piece(has_text, tokens, prompt_tokens, cached_of(usage), error_of(event))
