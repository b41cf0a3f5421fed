"""Charts as data: lines over a number, or bars by name. writers/ draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line, by x. Where a figure was not measured there is no point."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the chart, at an x (axis "x") or a y."""

    name: str
    value: float
    axis: str = "x"


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over x. log: an axis is drawn in powers of two (x) or ten (y) if its letter is in it."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    log: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each name; the first is drawn as what the others are beside. unit: what they are in."""

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]
    marks: tuple[Mark, ...] = field(default=())


Chart = Lines | Bars


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high, about so many: multiples of 1, 2 or 5 times a power of ten.

    Args:
        low, high: finite; equal ones give one tick.
    """
    if high <= low:
        return [low]
    rough = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def powers(low: float, high: float, base: int) -> list[float]:
    """Powers of base from low to high, with the one below and the one above; both are above 0."""
    first = math.floor(math.log(low, base) + 1e-9)
    last = math.ceil(math.log(high, base) - 1e-9)
    return [float(base) ** n for n in range(first, max(last, first + 1) + 1)]


def finite(points: Sequence[tuple[float, float | None]]) -> tuple[Point, ...]:
    """Those that were measured."""
    return tuple((x, y) for x, y in points if y is not None and math.isfinite(y))
