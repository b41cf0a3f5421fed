"""How SamplingParams declares its numbers: each once, where its field stands.

What follows from a declaration: the checks, the fields of requests (server/openai/sampling.py), the flags
(cli/_flags.py), what pipelines take, and docs/reference/sampling.md. A number that changes which tokens come
stands in other files only where tokens are drawn: in a row's record (ROW in kernels/draws.py, and
csrc/sample.h), in sampling/logits.py, and in the kernels of kernels/cuda/ and csrc/ that do the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from octavo import checks

T = TypeVar("T")
Role = Literal["draw", "penalty"]
"""What a number does to the tokens of an answer. draw: it decides which are drawn, so a greedy answer knows
nothing of it, and a search neither. penalty: it changes logits, whether a token is drawn from them or not."""


class Number(NamedTuple):
    """What a field may hold.

    Attributes:
        kind: int or float.
        low, high: the smallest and the largest value. above: low itself is too small.
        optional: None is taken, too.
        role: None: the number changes no token.
        check: is called with the object and the field's name. Raises InvalidRequestError, which names the
            field, unless its value fits; None does not.
    """

    kind: type[int] | type[float]
    low: float
    high: float
    check: Callable[[object, str], None]
    above: bool = False
    optional: bool = False
    role: Role | None = None


def whole(
    default: T, low: int, high: int, text: str, role: Role | None = None, *, optional: bool = False
) -> T:
    """The field of an integer. text: as of described(); the others are Number's."""
    check = partial(checks.integer, low=low, high=high)
    number = Number(int, low, high, check, optional=optional, role=role)
    return dataclasses.field(default=default, metadata={"text": text, "number": number})


def real(
    default: T, low: float, high: float, text: str, role: Role | None = None, *, above: bool = False
) -> T:
    """The field of a float. text: as of described(); the others are Number's."""
    check = partial(checks.number, low=low, high=high, low_open=above)
    number = Number(float, low, high, check, above=above, role=role)
    return dataclasses.field(default=default, metadata={"text": text, "number": number})


def described(default: T, text: str) -> T:
    """A field of another kind. text: one line for its flag's help and for the page of the parameters."""
    return dataclasses.field(default=default, metadata={"text": text})


def numbers(owner: type[Any]) -> dict[str, Number]:
    """The fields of a dataclass that hold a number, by name and in its order."""
    return {
        each.name: each.metadata["number"] for each in dataclasses.fields(owner) if "number" in each.metadata
    }


def texts(owner: type[Any]) -> dict[str, str]:
    """The fields of a dataclass that say what they are for, by name and in its order."""
    return {each.name: each.metadata["text"] for each in dataclasses.fields(owner) if "text" in each.metadata}


def defaults(owner: type[Any]) -> dict[str, Any]:
    """What the fields of a dataclass are where nobody says otherwise."""
    return {each.name: each.default for each in dataclasses.fields(owner)}
