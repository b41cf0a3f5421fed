"""Charts as PNG, for which matplotlib is needed: pip install '.[bench]' in Octavo's folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from octavo.bench.report.chart import Bars, Chart, Lines
from octavo.bench.report.writers import Report, Writer
from octavo.bench.report.writers.svg import COLOURS, LIMIT, QUIET
from octavo.errors import UnsupportedError


def need() -> None:
    """
    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "a PNG needs matplotlib: pip install '.[bench]' in Octavo's folder, or write .svg or .html"
        )


def write(report: Report, path: Path) -> None:
    """All charts, one below the other; no display is asked for one."""
    from matplotlib.figure import Figure

    count = max(len(report.charts), 1)
    figure = Figure(figsize=(8, 4 * count), layout="constrained")
    panels = figure.subplots(count, squeeze=False)
    for chart, row in zip(report.charts, panels, strict=False):
        _draw(row[0], chart)
    figure.suptitle(report.title)
    figure.savefig(path, dpi=110)


def _draw(panel: Any, chart: Chart) -> None:
    panel.set_title(chart.title)
    _bars(panel, chart) if isinstance(chart, Bars) else _lines(panel, chart)
    for mark in chart.marks:
        line = panel.axvline if mark.axis == "x" else panel.axhline
        line(mark.value, color=LIMIT, linestyle="--", label=mark.name)
    if chart.marks or (isinstance(chart, Lines) and len(chart.series) > 1):
        panel.legend()


def _lines(panel: Any, chart: Lines) -> None:
    for number, series in enumerate(chart.series):
        xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
        panel.plot(xs, ys, marker="o", color=COLOURS[number % len(COLOURS)], label=series.name)
    panel.set(xlabel=chart.x, ylabel=chart.y)
    if "x" in chart.log:
        panel.set_xscale("log", base=2)
    if "y" in chart.log:
        panel.set_yscale("log")


def _bars(panel: Any, chart: Bars) -> None:
    names, values = [name for name, _ in chart.bars], [value for _, value in chart.bars]
    colours = [COLOURS[0], *[QUIET] * (len(names) - 1)][: len(names)]
    panel.bar_label(panel.barh(names, values, color=colours), fmt="%.4g", padding=3)
    panel.set_xlabel(chart.unit)
    panel.margins(x=0.2)
    panel.invert_yaxis()


WRITER = Writer(".png", need, write)
