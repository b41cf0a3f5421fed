"""Pictures of the ablation, and of quality against size and speed.

They need matplotlib: pip install '.[bench]' in Octavo's folder.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.errors import UnsupportedError
from octavo.lab.ablate import Ablation
from octavo.lab.perplexity import Measured

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


def plot_quality(rows: Sequence[Measured], title: str, path: Path) -> None:
    """Write two panels, quality against size and against speed. Without a reference quality is perplexity,
    else KL divergence.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    compared = any(row.kl for row in rows)
    shown = [row for row in rows if row.kl or not compared]  # the reference lies at 0, which no log scale has
    heights = [row.kl if compared else row.perplexity for row in shown]
    for panel, unit, at in (
        (panels[0], "bits a weight in memory", [row.bits for row in shown]),
        (panels[1], "tokens of the text a second", [row.tokens_per_s for row in shown]),
    ):
        panel.scatter(at, heights, color=WITH)
        for row, x, y in zip(shown, at, heights, strict=True):
            panel.annotate(row.model, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
        panel.set(xlabel=unit, ylabel="KL divergence, nats a position" if compared else "perplexity")
        if compared:
            panel.set_yscale("log")
        panel.margins(x=0.2, y=0.2)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
