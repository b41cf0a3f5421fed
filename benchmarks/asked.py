"""What scripts are asked for: types of their flags, and mistakes told in a line, with status 2.

Needs nothing but Python, since worker.py runs where only an engine is installed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

USAGE = 2
"""What a script exits with that was asked for something wrong, as argparse does."""


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return number


def at_least_one(text: str) -> int:
    """A type of argparse: of what there must be some."""
    return _whole(text, 1)


def from_zero(text: str) -> int:
    """A type of argparse: of what there may be none, or where 0 means all."""
    return _whole(text, 0)


def not_negative(text: str) -> float:
    """A type of argparse: from 0 on, and finite."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return found


def above_zero(text: str) -> float:
    """A type of argparse: seconds, rates and factors."""
    if not (found := not_negative(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return found


def several(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A type of argparse: some of a kind, apart by commas."""
    return lambda text: [kind(each) for each in text.split(",")]


def checked(kind: Callable[[str], object]) -> Callable[[str], str]:
    """A type of argparse: the text itself, which results hold, where it is of a kind."""

    def same(text: str) -> str:
        kind(text)
        return text

    return same


def json_object(text: str) -> dict[str, Any]:
    """A type of argparse: a JSON object, such as an engine's options."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object, such as {{"isa": "avx2"}}')
    return found


class ScriptError(RuntimeError):
    """A script cannot do what it was asked for; the message says why, in a line."""


def with_own(options: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """An engine's options beside those that the script gives it.

    Raises:
        ScriptError: some are given twice.
    """
    if twice := sorted(options.keys() & own.keys()):
        raise ScriptError(f"--options: the script gives {', '.join(twice)} itself")
    return {**own, **options}


def refuse(name: str, why: object) -> NoReturn:
    """End a script: what was asked for is wrong."""
    print(f"{name}: {why}", file=sys.stderr)
    raise SystemExit(USAGE)


def tells(*errors: type[Exception]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Of a script's main: ScriptError and these end it in a line. They are what users can meet."""
    told: tuple[type[Exception], ...] = (ScriptError, *errors)

    def wrap(main: Callable[..., T]) -> Callable[..., T]:
        path = Path(main.__code__.co_filename)
        name = path.parent.name if path.stem == "__main__" else path.stem

        @functools.wraps(main)
        def run(*arguments: Sequence[str]) -> T:
            try:
                return main(*arguments)
            except told as error:
                refuse(name, error)

        return run

    return wrap
