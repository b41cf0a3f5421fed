"""FieldLists: what an API does with fields that the pydantic model of its requests does not have.

1. Obeyed: the model's own fields, and those that stand for one of them under another name.
2. Accepted without effect: advice, caching, billing, tracing. They are checked, and named in a header of the
   answer.
3. Refused: they would change the answer, and Octavo cannot. Where their value asks for nothing they pass.

A field that is in none of the three lists is unknown (openai/fields.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.server.openai.fields import IGNORED, json_type, note
from octavo.server.openai.shapes import holds_more
from octavo.tokenizer.message_calls import deeper

logger = logging.getLogger("octavo.server")

HEADER = b"x-octavo-ignored"
MAX_NAMES = 32
"""In the header; a request that is not read strictly may have thousands."""
_PLAIN = re.compile(r"[A-Za-z0-9_.:=-]")
MAX_TEXT = 4096
"""Characters of a text that is not read."""
MAX_VALUES = 1024
"""JSON values in an object or a list that is not read, nested ones included."""
MAX_DEPTH = 32
"""Levels of it."""

KINDS: dict[str, tuple[type, ...]] = {
    "an object": (dict,),
    "a list": (list,),
    "a string": (str,),
    "true or false": (bool,),
    "an integer": (int,),
    "an object or a list": (dict, list),
}

Stand = Callable[[Any, Mapping[str, Any]], dict[str, Any]]
"""(value, the whole body) to fields that the model has. Raises InvalidRequestError."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A field that is accepted without effect.

    Attributes:
        why: what it asks for, and why nothing has to be done.
        kind: one of KINDS; empty: the request's model has the field, and checks it.
    """

    why: str
    kind: str = ""

    def check(self, name: str, value: Any) -> None:
        """
        Raises:
            InvalidRequestError: it is of another type, or too large.
        """
        if not self.kind:
            return
        if type(value) not in KINDS[self.kind]:
            raise InvalidRequestError(f"{name} must be {self.kind}, not {json_type(value)}", name)
        bounded(value, name)


def bounded(value: Any, name: str) -> None:
    """Refuse advice that is large or deep: nobody reads it.

    Raises:
        InvalidRequestError: it is.
    """
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise InvalidRequestError(f"{name} takes at most {MAX_TEXT} characters", name)
    if holds_more(value, MAX_VALUES) or any(len(text) > MAX_TEXT for text in texts(value)):
        message = f"{name} takes at most {MAX_VALUES} values, of {MAX_TEXT} characters each"
        raise InvalidRequestError(message, name)
    if deeper(value, MAX_DEPTH):
        raise InvalidRequestError(f"{name} is nested deeper than {MAX_DEPTH}", name)


def texts(value: Any) -> Iterator[str]:
    """The strings in a JSON value, names of members too."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list):
            waiting += each


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that is refused.

    Attributes:
        why: what of it Octavo has not, as the end of "NAME is not supported: ".
        neutral: values that ask for nothing; null always does.
    """

    why: str
    neutral: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldLists:
    """Of one API's requests, by the fields' names.

    Attributes:
        stands: fields that stand for others, each with what it is (for the page) and how.
    """

    stands: Mapping[str, tuple[str, Stand]] = field(default_factory=dict)
    ignored: Mapping[str, Ignored] = field(default_factory=dict)
    refused: Mapping[str, Refused] = field(default_factory=dict)

    def take(self, name: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The model's fields that a field of another name stands for; {}: none; None: it is in no list.

        Raises:
            InvalidRequestError: it is of the wrong type. UnsupportedError: it is refused.
        """
        value = body[name]
        if name in self.stands:
            return self.stands[name][1](value, body)
        if name in self.ignored and self.ignored[name].kind:
            self.ignored[name].check(name, value)
            note(name)
            return {}
        if name not in self.refused:
            return None
        refused = self.refused[name]
        if any(value == neutral and type(value) is type(neutral) for neutral in refused.neutral):
            return {}
        raise UnsupportedError(f"{name} is not supported: {refused.why}", name)


def header_of_ignored(scope: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The header that names what a request's scope has noted (fields.note). It is logged at debug."""
    names = ["".join(_PLAIN.findall(name[:80])) for name in islice(scope[IGNORED], MAX_NAMES)]
    text = ", ".join(filter(None, names))
    logger.debug("accepted without effect: %s", text)
    return HEADER, text.encode("ascii")
