"""Charts as SVG, one below the other. Text stays text, and no library is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from octavo.bench.report.chart import Bars, Chart, Lines, Mark, Point, powers, ticks
from octavo.bench.report.writers import Report, Writer

WIDTH, HEIGHT = 640, 360
"""Of a chart, in pixels at its own size."""
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 44, 52
BAR, NAMES = 26, 190
"""Height of a bar with its gap, and the width of names before it."""
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#d69e2e", "#319795")
QUIET, LIMIT, INK = "#a0aec0", "#c53030", "#2d3748"
STYLE = f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}"'


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: where a value lies between two pixels, and what is written beside it."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, base: int | None) -> Axis:
        """
        Args:
            values: that lie on it, at least one; all above 0 where base is given.
            base: of a logarithmic axis; None: a linear one, from 0 where no value is below.
        """
        low, high = min(values), max(values)
        if base is not None and low > 0:
            marks = powers(low, high, base)
            return cls(marks[0], marks[-1], start, end, tuple(marks), True)
        low = min(low, 0.0)
        high = high if high > low else low + 1.0
        marks = ticks(low, high + (high - low) * 0.08)
        return cls(low, max(high * 1.05, marks[-1]), start, end, tuple(marks), False)

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def draw(chart: Chart) -> tuple[str, int]:
    """A chart's elements, from (0, 0) on, and their height."""
    return _bars(chart) if isinstance(chart, Bars) else _lines(chart)


def svg(charts: Sequence[Chart], title: str = "") -> str:
    """A whole file."""
    parts, top = [], 0
    if title:
        parts.append(_text(LEFT, 24, title, size=15))
        top = 36
    for chart in charts:
        body, height = draw(chart)
        parts.append(f'<g transform="translate(0 {top})">{body}</g>')
        top += height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {max(top, 1)}" width="{WIDTH}" '
        f'height="{max(top, 1)}" role="img" {STYLE}><rect width="100%" height="100%" fill="#fff"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def _lines(chart: Lines) -> tuple[str, int]:
    points = [point for series in chart.series for point in series.points]
    head = _text(LEFT, 20, chart.title, size=13)
    if not points:
        return head + _text(LEFT, 44, "not measured"), 64
    beside = {axis: [mark.value for mark in chart.marks if mark.axis == axis] for axis in "xy"}
    xs = [x for x, _ in points] + beside["x"]
    ys = [y for _, y in points] + beside["y"]
    x = Axis.over(xs, LEFT, WIDTH - RIGHT, 2 if "x" in chart.log else None)
    y = Axis.over(ys, HEIGHT - BOTTOM, TOP, 10 if "y" in chart.log else None)
    legend = 18 * len(chart.series) if len(chart.series) > 1 else 0
    parts = [head, _grid(x, y, chart)]
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_line([(x.at(a), y.at(b)) for a, b in series.points], colour))
        if legend:
            level = HEIGHT + 4 + 18 * number
            parts.append(f'<rect x="{LEFT}" y="{level - 9}" width="12" height="10" fill="{colour}"/>')
            parts.append(_text(LEFT + 18, level, series.name))
    parts += [_mark(mark, x, y) for mark in chart.marks]
    return "".join(parts), HEIGHT + legend + 8


def _grid(x: Axis, y: Axis, chart: Lines) -> str:
    parts = []
    for value in y.ticks:
        level = y.at(value)
        parts.append(_rule(x.start, level, x.end, level, "#e2e8f0"))
        parts.append(_text(x.start - 8, level + 4, figure(value), anchor="end"))
    for value in x.ticks:
        place = x.at(value)
        parts.append(_rule(place, y.start, place, y.start + 4, INK))
        parts.append(_text(place, y.start + 18, figure(value), anchor="middle"))
    parts.append(_rule(x.start, y.start, x.end, y.start, INK))
    parts.append(_text((x.start + x.end) / 2, y.start + 38, chart.x, anchor="middle"))
    parts.append(_text(x.start, TOP - 8, chart.y))
    return "".join(parts)


def _line(points: Sequence[Point], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _mark(mark: Mark, x: Axis, y: Axis) -> str:
    if mark.axis == "x":
        place = x.at(mark.value)
        rule = _rule(place, y.start, place, y.end, LIMIT, dashed=True)
        right = place > (x.start + x.end) / 2
        where = place - 4 if right else place + 4
        return rule + _text(where, y.end + 12, mark.name, anchor="end" if right else "start", colour=LIMIT)
    level = y.at(mark.value)
    return _rule(x.start, level, x.end, level, LIMIT, dashed=True) + _text(
        x.end, level - 4, mark.name, anchor="end", colour=LIMIT
    )


def _bars(chart: Bars) -> tuple[str, int]:
    head = _text(LEFT, 20, chart.title, size=13)
    if not chart.bars:
        return head + _text(LEFT, 44, "not measured"), 64
    values = [value for _, value in chart.bars] + [mark.value for mark in chart.marks]
    axis = Axis.over([0.0, *values], NAMES, WIDTH - 90, None)
    bottom = TOP + BAR * len(chart.bars)
    parts = [head]
    for number, (name, value) in enumerate(chart.bars):
        top, end = TOP + BAR * number, axis.at(value)
        colour = COLOURS[0] if number == 0 else QUIET
        width = max(end - axis.at(0.0), 0.5)
        parts.append(f'<rect x="{NAMES}" y="{top}" width="{width:.1f}" height="{BAR - 8}" fill="{colour}"/>')
        parts.append(_text(NAMES - 8, top + 13, name, anchor="end"))
        parts.append(_text(end + 6, top + 13, figure(value)))
    for mark in chart.marks:
        place = axis.at(mark.value)
        parts.append(_rule(place, TOP - 4, place, bottom, LIMIT, dashed=True))
        parts.append(_text(place, TOP - 6, mark.name, anchor="middle", colour=LIMIT))
    parts.append(_text(NAMES, bottom + 14, chart.unit))
    return "".join(parts), bottom + 34


def figure(value: float) -> str:
    """Three digits, or as many as a whole number has."""
    if value == 0:
        return "0"
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def need() -> None:
    """Nothing."""


def write(report: Report, path: Path) -> None:
    """All charts of the report."""
    path.write_text(svg(report.charts, report.title), encoding="utf-8")


WRITER = Writer(".svg", need, write)
