"""What a parameter may be: numbers of any kind made plain, ranges checked, errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, cast

from octavo.errors import InvalidRequestError


def plain_number(value: Any) -> Any:
    """A number of any kind, such as NumPy's scalars, as Python's own; everything else as it is."""
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def token_ids(name: str, values: Iterable[Any] | None) -> tuple[Any, ...]:
    given = items(name, "token ids", values)
    return given if set(map(type, given)) <= {int} else tuple(map(plain_number, given))


def items(name: str, kind: str, values: Iterable[Any] | None) -> tuple[Any, ...]:
    """The items of a list, or of anything like one; None holds none, a text is the one item."""
    if values is None or isinstance(values, str):
        return () if values is None else (values,)
    if not isinstance(values, Iterable) or isinstance(values, (bytes, Mapping)):
        raise InvalidRequestError(f"{name} must be a list of {kind}, not {values!r}", name)
    return tuple(values)


def are_ids(values: Sequence[object]) -> bool:
    """All are integers from 0 on. (Of hundreds of thousands this is asked several times.)"""
    return set(map(type, values)) <= {int} and min(cast(Sequence[int], values), default=0) >= 0


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def need(holds: bool, rule: str, name: str) -> None:
    """Refuse the parameter of that name with "name rule", unless its rule holds."""
    if not holds:
        raise InvalidRequestError(f"{name} {rule}", name)


def integer(params: object, name: str, low: int, high: int) -> None:
    value = getattr(params, name)
    if not is_int(value) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be an integer from {low} to {high}, not {value!r}", name)


def booleans(params: object, *names: str) -> None:
    for name in names:
        value = getattr(params, name)
        if not isinstance(value, bool):
            raise InvalidRequestError(f"{name} must be True or False, not {value!r}", name)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequestError(f"{name} must be one of {', '.join(allowed)}, not {value!r}", name)


def positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequestError(f"{name} must be a positive integer, not {value!r}", name)


def number(params: object, name: str, low: float, high: float, low_open: bool = False) -> None:
    value = getattr(params, name)
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or not low <= value <= high or (low_open and value == low):
        above = f"above {low:g}" if low_open else f"at least {low:g}"
        raise InvalidRequestError(f"{name} must be {above} and at most {high:g}, not {value!r}", name)
