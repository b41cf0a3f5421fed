"""What is fuzzed: the parts of a target, and how an outcome is called."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.errors import OctavoError


class Case(Protocol):
    """A parser, made once in a worker.

    Attributes:
        seeds: inputs that are right.
        base_s, byte_s: of a processor's time, an input may take so much, and so much more for each byte.
        memory: bytes of address space beyond what the warm worker has.
    """

    seeds: Sequence[bytes]
    base_s: float
    byte_s: float
    memory: int

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        """Another input."""
        ...

    def run(self, data: bytes) -> str:
        """Feed it to the parser. Returns what has come of it; whatever it raises is a fault."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where a case is made, and how much of the work it gets.

    Attributes:
        share: of a million inputs.
        case: "module:class", made in a worker.
        contained: "module:function", what the server does with an input that has ended or overrun its worker:
            it runs the input where that harms nobody, and returns what came of it. "": it is a fault.
    """

    share: int
    case: str
    contained: str = ""


class Wrong(Exception):  # noqa: N818
    """The parser has answered, but not as it must."""


_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_SCRATCH = re.compile(r"/\S*octavo-fuzz-\w+/?")
_ODD = re.compile(r"\S*[^\sA-Za-z0_:;,.'()/-]\S*")
_NUMBER = re.compile(r"-?\d[\d.,]*(e[+-]?\d+)?")


def outcome_of(error: OctavoError) -> str:
    """An error for people, without what differs from input to input.

    Raises:
        Wrong: people cannot read it.
    """
    text = str(error)
    if not text or "\n" in text or len(text) > 2000:
        raise Wrong(
            f"an error of {len(text)} characters, {text.count(chr(10))} ends of lines: {text[:200]!r}"
        )
    return f"{type(error).__name__}: {short(text)}"


def short(text: str) -> str:
    """A message without its names and numbers."""
    text = _NUMBER.sub("0", _QUOTED.sub("'_'", _SCRATCH.sub("", text)))
    return " ".join(_ODD.sub("_", text).split()[:14])[:110]


def guarded(parse: Callable[..., str], *given: Any) -> str:
    """What parse() returns, or the error for people that it raises."""
    try:
        return parse(*given)
    except OctavoError as error:
        return outcome_of(error)
