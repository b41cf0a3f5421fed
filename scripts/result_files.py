"""Reading one result file: what is wrong with it is said with its name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MISREAD = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What comes of a value of another kind than its benchmark writes."""


class ResultError(Exception):
    """A result file is broken; the message names it."""


def load(path: Path) -> dict[str, Any]:
    """A result: an object with a date.

    Raises:
        ResultError: it is something else, or cannot be read.
    """
    try:
        found = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ResultError(f"{path} is no result: it holds {found!r:.40}, not an object")
    if not isinstance(found.get("date"), str):
        raise ResultError(f'{path} is no result: its "date" is {found.get("date")!r:.40}, not text')
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number there")


@contextlib.contextmanager
def naming(*paths: Path) -> Iterator[None]:
    """What goes wrong with values within names the files that they are from.

    Raises:
        ResultError: a value is not as its benchmark writes it.
    """
    try:
        yield
    except MISREAD as error:
        names = ", ".join(map(str, paths))
        why = f"{type(error).__name__}: {error}"
        raise ResultError(f"{names}: a value is not as its benchmark writes it ({why})") from error


def at_odds(path: Path, result: Mapping[str, Any]) -> Iterator[str]:
    """Rows of a peers result that do not follow from what it holds.

    benchmarks/peers takes both sides from the rates of its shapes, and the ratio from these as they stand
    there: round(ours / theirs, 2).

    Raises:
        ResultError: a value is not as peers writes it.
    """
    if result.get("benchmark") != "peers":
        return
    with naming(path):
        engines = [side for shape in result["shapes"].values() for side in shape["engines"].items()]
        held = {(name, each[kind]) for name, each in engines for kind in ("prompt", "decode")}
        for row in result["ratios"]:
            if (ratio := row["ratio"]) is None:
                continue
            said = f"{path.name}: {row['row']}"
            ours, theirs = row["ours"], row["theirs"]
            for name, rate in ((row["with"], ours), (row["over"], theirs)):
                if (name, rate) not in held:
                    yield f"{said}: no shape has {rate} of {name}"
            if ratio != (due := round(ours / theirs, 2)):
                yield f"{said}: the ratio is {ratio}, {ours} over {theirs} are {due}"
            if row["reached"] != (ratio >= row["least"]):
                yield f"{said}: {ratio} of {row['least']}, and reached is {row['reached']}"
