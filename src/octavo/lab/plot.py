"""The ablation as a picture. Needs matplotlib: pip install '.[bench]' in Octavo's folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from octavo.errors import UnsupportedError
from octavo.lab.ablate import Ablation

WITH, WITHOUT, LIMIT = "#2b6cb0", "#a0aec0", "#c53030"


def need_matplotlib() -> None:
    """
    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("a plot needs matplotlib: pip install '.[bench]' in Octavo's folder", "out")


def plot(result: Ablation, title: str, path: Path) -> None:
    """Write four panels, one a comparison, in the format of the path's suffix.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    _batching(panels[0][0], result)
    _prefix(panels[0][1], result)
    _chunking(panels[1][0], result)
    _sharing(panels[1][1], result)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def _bars(panel: Any, title: str, unit: str, bars: dict[str, float], best: str, log: bool = False) -> None:
    colors = [WITH if name == best else WITHOUT for name in bars]
    drawn = panel.barh(list(bars), list(bars.values()), color=colors)
    panel.bar_label(drawn, fmt="%.4g", padding=3)
    panel.set(title=title, xlabel=unit)
    if log:
        panel.set_xscale("log")
    panel.margins(x=0.2)
    panel.invert_yaxis()


def _batching(panel: Any, result: Ablation) -> None:
    found = result.batching
    bars = {"continuous": found.continuous, "static": found.static, "contiguous KV": found.contiguous}
    title = f"Batching: {found.ratio:.1f} x static (bound {found.bound:.1f})"
    _bars(panel, title, "output tokens a second", bars, "continuous")


def _prefix(panel: Any, result: Ablation) -> None:
    found = result.prefix
    bars = {"prefix cached": found.cached_ms, "computed": found.computed_ms}
    title = f"{found.shared_tokens} shared tokens: first token {found.ratio:.0f} x sooner"
    _bars(panel, title, "milliseconds to the first token", bars, "prefix cached", log=True)


def _chunking(panel: Any, result: Ablation) -> None:
    found = result.chunking
    bars = {
        "nobody arrives (median)": found.quiet_p50,
        "chunked (p99)": found.chunked_p99,
        "whole (p99)": found.whole_p99,
    }
    title = f"Prompts of {found.prompt_tokens} arrive: between two tokens"
    _bars(panel, title, "milliseconds; the line is what is allowed", bars, "chunked (p99)", log=True)
    panel.axvline(found.allowed_ms, color=LIMIT, linestyle="--")


def _sharing(panel: Any, result: Ablation) -> None:
    found = result.sharing
    bars = {"copy-on-write": float(found.shared_pages), "a copy each": float(found.copied_pages)}
    title = f"{found.beams} beams: {found.saved:.0%} of the pages saved"
    _bars(panel, title, "pages", bars, "copy-on-write")
