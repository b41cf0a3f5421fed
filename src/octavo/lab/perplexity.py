"""Models on the same windows of one text: what each makes of it, beside a reference and by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from octavo.bench.report.chart import Chart, Lines, Series
from octavo.errors import InvalidRequestError, OctavoError
from octavo.kernels.ops import F32
from octavo.lab.quality import Quality, TextIds, given_and_scored, log_softmax, windows

Told = Callable[[int, int], None]
"""(windows measured, windows in all)."""


class Scorer(Protocol):
    """Who gives logits: a WindowScorer, or another engine."""

    def logits(self, ids: list[int], first: int) -> F32:
        """[len(ids) - first, vocab], as WindowScorer's."""
        ...


@dataclass(slots=True)
class Compared:
    """What was measured.

    Attributes:
        windows: of the text that all have read.
        tokens: that each was given in them.
        quality: of each by its name; of one window nothing is counted that not all have read.
        seconds: that each took for its logits.
        interrupted: Ctrl-C came before the last window.
    """

    windows: int = 0
    tokens: int = 0
    quality: dict[str, Quality] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False

    def rate(self, name: str) -> float:
        """Tokens that it read in a second, the head computed for those that are scored."""
        return self.tokens / self.seconds[name]


def cut(text: TextIds, length: int, count: int | None, where: str) -> list[list[int]]:
    """The windows that are scored.

    Args:
        count: at most so many from the text's beginning; None: all.
        where: the text's name.

    Raises:
        InvalidRequestError: the text has not one window.
    """
    found = list(windows(text.ids, length, count))
    if not found:
        raise InvalidRequestError(
            f"{where} has {len(text.ids)} tokens, and a window {length}: give a longer text, or "
            "shorter windows (--context)"
        )
    return found


def compare(
    scorers: Mapping[str, Scorer],
    against: str | None,
    read: Sequence[list[int]],
    before: int | None,
    told: Told = lambda done, total: None,
) -> Compared:
    """Score the second half of each window, every prediction from the window alone.

    Args:
        against: who of them is the reference of KL divergence, agreement and flips; None: nobody.
        read: windows of one length.
        before: stands for each window's first id (given_and_scored).

    Raises:
        OctavoError: logits that are not finite, or vocabularies of different sizes.
        KeyboardInterrupt: before one window was measured; after one the rest is left out.
    """
    found = Compared(quality={name: Quality() for name in scorers}, seconds=dict.fromkeys(scorers, 0.0))
    first = len(read[0]) // 2
    try:
        for number, window in enumerate(read):
            ids, targets = given_and_scored(window, first, before)
            logits, seconds = _asked(scorers, ids, first)
            _check(logits, against, number)
            reference = None if against is None else logits[against]
            likely = None if reference is None else log_softmax(reference)
            sums = {name: Quality() for name in scorers}
            for name, each in sums.items():
                each.add(logits[name], reference, targets, likely)
            _take(found, sums, seconds, len(ids))
            told(found.windows, len(read))
    except KeyboardInterrupt:
        if not found.windows:
            raise
        found.interrupted = True
    return found


def _asked(
    scorers: Mapping[str, Scorer], ids: list[int], first: int
) -> tuple[dict[str, F32], dict[str, float]]:
    logits, seconds = {}, {}
    for name, scorer in scorers.items():
        start = time.perf_counter()
        logits[name] = scorer.logits(ids, first)
        seconds[name] = time.perf_counter() - start
    return logits, seconds


def _check(logits: Mapping[str, F32], against: str | None, number: int) -> None:
    for name, each in logits.items():
        if not np.isfinite(each).all():
            raise OctavoError(f"{name} gives logits that are not finite in window {number + 1}")
        if against is not None and each.shape != logits[against].shape:
            raise InvalidRequestError(
                f"{name} has logits of {each.shape[1]} tokens and {against} of {logits[against].shape[1]}: "
                "divergence is of one vocabulary"
            )


def _take(found: Compared, sums: Mapping[str, Quality], seconds: Mapping[str, float], tokens: int) -> None:
    """A window is counted for all or, where Ctrl-C comes, for nobody: what is taken here is taken at once."""
    quality = {name: found.quality[name] + each for name, each in sums.items()}
    spent = {name: found.seconds[name] + each for name, each in seconds.items()}
    found.quality, found.seconds, found.tokens, found.windows = (
        quality, spent, found.tokens + tokens, found.windows + 1,
    )  # fmt: skip


class Weighed(Protocol):
    """A model whose weights' size is known (WindowScorer)."""

    bits: float
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's line of the table.

    Attributes:
        bits: of a weight in memory, scales included; weights_mb: all of them, in millions of bytes.
        positions: that were scored.
        perplexity_error: its standard error, as if positions knew nothing of each other.
        over: its perplexity over the reference's; over_error: its standard error, as the other one.
        kl: nats a position; agreement: share of equal first choices; flips: of first choices further apart
            than a near tie (quality.NEAR_TIE). None where there is no reference.
        tokens_per_s: Compared.rate.
    """

    model: str
    bits: float
    weights_mb: float
    positions: int
    perplexity: float
    perplexity_error: float
    over: float | None
    over_error: float | None
    kl: float | None
    agreement: float | None
    flips: int | None
    tokens_per_s: float


def rows_of(found: Compared, models: Mapping[str, Weighed], against: str | None) -> list[Measured]:
    """The table, in the order in which the models were given."""
    rows = []
    for name, model in models.items():
        each, beside = found.quality[name], against is not None
        rows.append(
            Measured(
                name,
                model.bits,
                model.weight_bytes / 1e6,
                each.positions,
                each.perplexity,
                each.perplexity_error,
                each.over if beside else None,
                each.over_error if beside else None,
                each.mean_kl if beside else None,
                each.agreement if beside else None,
                each.flips if beside else None,
                found.rate(name),
            )
        )
    return rows


def charts(rows: Sequence[Measured]) -> list[Chart]:
    """Quality against size and against speed, a point a model. Without a reference quality is perplexity,
    else KL divergence, drawn in powers of ten: a reference's own, 0, has no place there."""
    compared = any(row.kl for row in rows)
    shown = [row for row in rows if row.kl or not compared]
    quality = "KL divergence, nats a position" if compared else "perplexity"
    places = {
        "bits a weight in memory": [row.bits for row in shown],
        "tokens of the text a second": [row.tokens_per_s for row in shown],
    }
    heights = [(row.kl or 0.0) if compared else row.perplexity for row in shown]
    return [
        Lines(
            f"{quality}, by {unit}",
            unit,
            quality,
            tuple(Series(row.model, ((x, y),)) for row, x, y in zip(shown, at, heights, strict=True)),
            log="y" if compared else "",
        )
        for unit, at in places.items()
    ]
