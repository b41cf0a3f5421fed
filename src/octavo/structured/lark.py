"""Lark text as llguidance cuts it: where its regular expressions and its JSON schemas stand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from octavo.errors import InvalidRequestError
from octavo.params.structured import PARAM

# What could hold a quote or a slash that begins nothing has to be known: special tokens and comments, too.
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\x00-\x1f\x7f])*+"|(?://|\#)[^\n]*+|/((?:\\.|[^/\\])++)/([imslux]*+)|<[^<>\s]++>'
    r"|(%json|%llguidance|%regex)|.",
    re.DOTALL,
)
_BLANK = re.compile(r"\s++")
_DECODER = json.JSONDecoder()


class Regex(NamedTuple):
    """An expression between slashes, and the flags behind it."""

    text: str
    flags: str


class Schema(NamedTuple):
    """A JSON schema behind %json, and where it stands."""

    value: Any
    start: int
    end: int


def scan(text: str) -> Iterator[Regex | Schema]:
    """The expressions and schemas of a grammar, in one pass.

    Raises:
        InvalidRequestError: what follows %json, %regex or %llguidance is not JSON.
    """
    at = 0
    while found := _TOKEN.match(text, at):
        at = found.end()
        if found[1] is not None:
            yield Regex(found[1], found[2])
        elif found[3] is not None:
            start = at if (blank := _BLANK.match(text, at)) is None else blank.end()
            try:
                value, at = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                message = f"structured_outputs.grammar: what follows {found[3]} is not JSON"
                raise InvalidRequestError(message, PARAM) from None
            if found[3] == "%json":
                yield Schema(value, start, at)


def with_schemas(text: str, change: Callable[[Any], Any]) -> str:
    """The grammar with each of its schemas changed."""
    pieces, at = [], 0
    for found in scan(text):
        if isinstance(found, Schema):
            pieces += [text[at : found.start], json.dumps(change(found.value))]
            at = found.end
    return "".join((*pieces, text[at:]))
