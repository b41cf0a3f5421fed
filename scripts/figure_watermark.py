"""The table of what watermarks show and cost, from results of benchmarks/watermark.py."""

from __future__ import annotations

from typing import Any

from figure_runs import Row, Table

STRENGTH, COST = "benchmarks/watermark.py strength --write", "benchmarks/watermark.py cost --write"
MODELS = {"smollm2": "SmolLM2", "gemma3-270m": "Gemma 3 270M"}


def strength(label: str, at: tuple[str, ...], shown: str, **bounds: Any) -> Row:
    """Of answers of the one model whose vocabulary is large."""
    only = {"settings/model": "gemma3-270m"}
    return Row(label, "watermark_strength", at, (shown,), STRENGTH, only=only, **bounds)


def cost(model: str, streams: int, most: float | None = None) -> Row:
    """What marked streams cost, and what their lists are."""
    fields = ("ratio", "low", "high", "again", "hit_rate", "first")
    shown = "{0:.3f} ({1:.3f} to {2:.3f}; {3:.3f}); {4:.0%} of lists kept; first tokens {5:.2f}"
    command = COST if model == "smollm2" else COST.replace("--write", f"--model {model} --write")
    return Row(
        f"{MODELS[model]}, {streams} marked streams at temperature 1: their steps over unmarked ones (95 %; "
        "the control)", "watermark_cost", tuple(f"{streams}/{name}" for name in fields), (shown,), command,
        most=most, only={"settings/model": model},
    )  # fmt: skip


WATERMARK = Table((
    strength("200 answers of 200 tokens at temperature 1, Gemma 3 270M: share with z above 4 (the least z)",
             ("marked/share", "marked/z_least"), "{0:.1%} ({1:.1f})", least=0.95, bound="{:.0%}"),
    strength("as many without a mark: p of the test for a standard normal z (mean, deviation; above 4)",
             ("unmarked/normal_p", "unmarked/z_mean", "unmarked/z_deviation", "unmarked/share"),
             "{0:.2f} ({1:.2f}, {2:.2f}; {3:.1%})", least=0.01),
    strength("perplexity of the marked answers over that of the others",
             ("cost/perplexity_ratio", "marked/perplexity", "unmarked/perplexity"),
             "{0:.2f} ({1:.1f} and {2:.1f})"),
    cost("smollm2", 32, 1.05), cost("smollm2", 64, 1.05), cost("gemma3-270m", 32), cost("gemma3-270m", 64),
))  # fmt: skip
TABLES = {"watermark": WATERMARK}
