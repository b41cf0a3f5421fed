"""A load's figures as tables and charts."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.bench.report.chart import Chart, Lines, Series
from octavo.bench.report.table import NONE, Table, number, table
from octavo.bench.serving.exchange import Reply
from octavo.bench.serving.figures import METRICS, Figures
from octavo.bench.serving.generator import LoadRecord

CURVE = 40
"""Points of a curve of percentiles."""
CACHED = 0.1
"""Which part of the prompts' tokens may come from a cache beyond what a data set shares: more is said."""


def tables(found: Figures, metrics: Sequence[str], shared: float = 0.0) -> list[Table]:
    """What was done, and the times of the metrics.

    Args:
        shared: which part of the prompts' tokens is to come from a cache (DataSet.shared).
    """
    return [_totals(found, shared), _times(found, metrics)]


def cache_note(share: float | None, shared: float, whose: str) -> list[str]:
    """A line where more came from a cache than the data set shares: new prompts would have taken longer."""
    if share is None or share <= shared + CACHED:
        return []
    asked = "another --seed makes other prompts (not of custom), or turn the cache off"
    return [f"{share:.0%} of the prompts' tokens came from {whose} cache, as if asked before: {asked}"]


def _totals(found: Figures, shared: float) -> Table:
    tokens = number(float(found.output_tokens), 0) if found.completed else NONE
    rows = [
        ("requests answered", number(float(found.completed), 0)),
        ("requests a second", number(found.request_rate, 2)),
        ("tokens of answers", tokens),
        ("tokens of answers a second", number(found.output_rate)),
        ("tokens of prompts", NONE if found.input_tokens is None else number(float(found.input_tokens), 0)),
        ("tokens of prompts from the server's cache", shown_share(found.cached_share)),
        ("tokens a second, prompts too", number(found.total_rate)),
        ("most requests at once", number(float(found.most_at_once), 0)),
    ]
    if found.cpu_share is not None:
        rows.append(("of this machine, what asking took", f"{found.cpu_share:.1%}"))
    if found.goodput is not None:
        rows.append(("goodput, answers a second within limits", number(found.goodput, 2)))
    notes = [f"{count} x {error}" for error, count in found.errors.items()]
    notes += cache_note(found.cached_share, shared, "the server's")
    if found.cut is not None:
        left = f"{found.unfinished} were being answered, {found.unsent} had not been sent"
        notes.insert(0, f"{found.cut}: {left}, and count for nothing")
    if found.counted == "pieces":
        notes.append("the server counts no tokens: the pieces of text that came are counted")
    if found.late_ms is not None and found.late_ms > 10:
        notes.append(f"requests were sent up to {found.late_ms:.0f} ms late: this machine is too busy to ask")
    ended = f"{found.completed + found.failed} requests ended, {found.failed} of them failed"
    return Table(("in all", "figure"), tuple(rows), f"{found.seconds:.2f} s, {ended}", tuple(notes))


def shown_share(share: float | None) -> str:
    """A part as percent; what was not said is no figure."""
    return NONE if share is None else f"{share:.1%}"


def _times(found: Figures, metrics: Sequence[str]) -> Table:
    wanted = {name: found.spreads[name] for name in METRICS if name in metrics}
    measured = [spread for spread in wanted.values() if spread is not None]
    shares = list(measured[0].percentiles) if measured else []
    rows = []
    for name, spread in wanted.items():
        values = [None] * (1 + len(shares)) if spread is None else [spread.mean, *spread.percentiles.values()]
        rows.append((METRICS[name], *values))
    return table(("milliseconds", "mean", *(f"p{share:g}" for share in shares)), rows)


def charts(recorded: LoadRecord) -> list[Chart]:
    """How waiting times spread, how they went on over the load, and the throughput over it."""
    good = [reply for reply in recorded.replies if reply.is_complete]
    return [_curves(good), _over_time(good), _throughput(good, recorded.seconds)]


def _curves(good: Sequence[Reply]) -> Lines:
    values = {
        "first token (TTFT)": sorted(1e3 * r.ttft for r in good if r.ttft is not None),
        "whole answer (E2EL)": sorted(1e3 * r.e2el for r in good if r.e2el is not None),
        "between arrivals (ITL)": sorted(1e3 * gap for r in good for gap in r.itl),
    }
    series = []
    for name, times in values.items():
        places = {round(n * (len(times) - 1) / CURVE) for n in range(CURVE + 1)} if times else set()
        # A logarithm has no place for a time of 0: pieces that came in one read.
        points = [(100 * (p + 1) / len(times), times[p]) for p in sorted(places) if times[p] > 0]
        series.append(Series(name, tuple(points)))
    return Lines("How long requests took", "percent of all", "milliseconds", tuple(series), log="y")


def _over_time(good: Sequence[Reply]) -> Lines:
    points = sorted((r.sent_s, 1e3 * r.ttft) for r in good if r.sent_s is not None and r.ttft is not None)
    title = "Time to the first token, by when a request was sent"
    return Lines(title, "seconds from the beginning", "milliseconds", (Series("TTFT", tuple(points)),))


def _throughput(good: Sequence[Reply], seconds: float) -> Lines:
    width = max(seconds / CURVE, 1e-9)
    counts = [0.0] * (CURVE + 1)
    for reply in good:
        for moment in reply.arrivals:
            # Where a piece brings several tokens, each piece has its part of them.
            counts[min(int(moment / width), CURVE)] += reply.output_tokens / len(reply.arrivals)
    points = tuple(((n + 0.5) * width, count / width) for n, count in enumerate(counts[:CURVE]))
    rate = Series("tokens", points if good else ())
    return Lines("Tokens a second over the load", "seconds from the beginning", "tokens a second", (rate,))
