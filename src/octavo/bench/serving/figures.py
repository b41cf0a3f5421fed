"""What a load's times say. Names are vLLM's: milliseconds end with _ms, rates are a second's.

    TTFT   from sending to the first text          ITL    between one piece of text and the next
    TPOT   (E2EL - TTFT) / (tokens - 1)            E2EL   from sending to the last text

A figure that nothing was measured for is None, and never 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.bench.serving.exchange import Reply
from octavo.bench.serving.generator import LoadRecord
from octavo.bench.workload import percentile
from octavo.errors import InvalidRequestError
from octavo.runtime.hardware import usable_threads

METRICS = {
    "ttft": "to the first token (TTFT)",
    "tpot": "a token after the first (TPOT)",
    "itl": "between arrivals (ITL)",
    "e2el": "the whole answer (E2EL)",
}
PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds of some requests. percentiles: by their numbers."""

    count: int
    mean: float
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> Spread | None:
        """None: nothing was measured."""
        if not seconds:
            return None
        found = {p: 1e3 * percentile(seconds, p / 100) for p in percentiles}
        return cls(len(seconds), 1e3 * statistics.fmean(seconds), found)


@dataclass(frozen=True, slots=True)
class Figures:
    """A load in numbers. None: nothing was measured.

    Attributes:
        completed, failed, unfinished, unsent: requests, by how they ended; together all of them.
        cached_tokens: of input_tokens, those that the server says came from its cache; None: it does not say.
        counted: "usage" if the server counted all answers' tokens; "pieces" if for some of them the pieces of
            text that came had to do; None: there was no answer.
        goodput: answers a second that kept every limit of the SLO; None: no SLO was given.
        cpu_seconds: that asking and reading took; cpu_share: of what this machine had meanwhile.
        late_ms: the most that a request was sent after it was due while no --max-concurrency held it back.
        cut: why it ended before all were answered.
        errors: what went wrong, and how often.
    """

    seconds: float
    completed: int
    failed: int
    unfinished: int
    unsent: int
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    counted: str | None
    request_rate: float | None
    output_rate: float | None
    total_rate: float | None
    goodput: float | None
    most_at_once: int
    cpu_seconds: float
    cpu_share: float | None
    late_ms: float | None
    cut: str | None
    spreads: Mapping[str, Spread | None]
    errors: Mapping[str, int]

    @property
    def cached_share(self) -> float | None:
        """Which part of the prompts' tokens came from the server's cache, 0..1."""
        return cached_share([self])

    def summary(self) -> dict[str, object]:
        """For JSON, in vLLM's names."""
        found: dict[str, object] = {
            "duration": self.seconds,
            "completed": self.completed,
            "failed": self.failed,
            "unfinished": self.unfinished,
            "unsent": self.unsent,
            "cut": self.cut,
            "total_input_tokens": self.input_tokens,
            "total_cached_tokens": self.cached_tokens,
            "cached_share": self.cached_share,
            "total_output_tokens": self.output_tokens,
            "tokens_counted_by": self.counted,
            "request_throughput": self.request_rate,
            "request_goodput": self.goodput,
            "output_throughput": self.output_rate,
            "total_token_throughput": self.total_rate,
            "max_concurrent_requests": self.most_at_once,
            "client_cpu_seconds": self.cpu_seconds,
            "client_cpu_share": self.cpu_share,
            "max_late_ms": self.late_ms,
        }
        for name, spread in self.spreads.items():
            found[f"mean_{name}_ms"] = None if spread is None else spread.mean
            for number, value in ({} if spread is None else spread.percentiles).items():
                found[f"p{number:g}_{name}_ms"] = value
        return found | {"errors": dict(self.errors)}


def cached_share(loads: Sequence[Figures]) -> float | None:
    """Which part of all these loads' prompt tokens came from the server's cache; None: one does not say."""
    told = [(each.cached_tokens, each.input_tokens) for each in loads]
    pairs = [(cached, given) for cached, given in told if cached is not None and given]
    if not pairs or len(pairs) < len(told):
        return None
    return sum(cached for cached, _ in pairs) / sum(given for _, given in pairs)


def figures(
    recorded: LoadRecord,
    slo: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    held_back: bool = False,
) -> Figures:
    """
    Args:
        slo: most milliseconds of a metric, by its name in METRICS (itl excepted).
        held_back: requests may have waited for others (--max-concurrency), so being late says nothing.
    """
    replies = recorded.replies
    good = [reply for reply in replies if reply.is_complete]
    failed = [reply.error for reply in replies if reply.error is not None]
    unsent = sum(reply.sent_s is None and reply.error is None for reply in replies)
    inputs = [reply.prompt_tokens for reply in good if reply.prompt_tokens is not None]
    cached = [min(r.cached_tokens, r.prompt_tokens or 0) for r in good if r.cached_tokens is not None]
    tokens = sum(reply.output_tokens for reply in good)
    counted = len(inputs) == len(good) and bool(good)
    seconds = recorded.seconds if good and recorded.seconds > 0 else math.nan
    late = [reply.sent_s - reply.due_s for reply in replies if reply.sent_s is not None]
    times = {name: _times(good, name) for name in METRICS}
    return Figures(
        seconds=recorded.seconds,
        completed=len(good),
        failed=len(failed),
        unfinished=len(replies) - len(good) - len(failed) - unsent,
        unsent=unsent,
        input_tokens=sum(inputs) if counted else None,
        cached_tokens=sum(cached) if counted and len(cached) == len(good) else None,
        output_tokens=tokens,
        counted=("usage" if all(r.tokens is not None for r in good) else "pieces") if good else None,
        request_rate=_rate(len(good), seconds),
        output_rate=_rate(tokens, seconds),
        total_rate=_rate(tokens + sum(inputs), seconds) if counted else None,
        goodput=_rate(sum(_keeps(reply, slo) for reply in good), seconds) if slo else None,
        most_at_once=recorded.most_at_once,
        cpu_seconds=recorded.cpu_s,
        cpu_share=None if math.isnan(seconds) else recorded.cpu_s / seconds / usable_threads(),
        late_ms=1e3 * max(late) if late and not held_back else None,
        cut=recorded.cut,
        spreads={name: Spread.of(values, percentiles) for name, values in times.items()},
        errors={error: failed.count(error) for error in dict.fromkeys(failed)},
    )


def read_slo(texts: Sequence[str]) -> dict[str, float]:
    """ttft:500 tpot:50 as {"ttft": 500.0, "tpot": 50.0}.

    Args:
        texts: each with one or several, blanks or commas between.

    Raises:
        InvalidRequestError: one is no limit of a metric.
    """
    found = {}
    names = [name for name in METRICS if name != "itl"]
    for word in " ".join(texts).replace(",", " ").split():
        name, _, text = word.partition(":")
        try:
            most = float(text)
        except ValueError:
            most = math.nan
        if name not in names or not 0 < most < math.inf:
            raise InvalidRequestError(
                f"--goodput takes milliseconds of {', '.join(names)}, such as ttft:500, and not {word!r}"
            )
        found[name] = most
    return found


def _times(replies: Sequence[Reply], name: str) -> list[float]:
    if name == "itl":
        return [gap for reply in replies for gap in reply.itl]
    values = (getattr(reply, name) for reply in replies)
    return [value for value in values if value is not None]


def _keeps(reply: Reply, slo: Mapping[str, float]) -> bool:
    """Whether an answer is within all limits; of one token there is no TPOT, and so nothing to keep."""
    times = ((getattr(reply, name), most) for name, most in slo.items())
    return bool(reply.arrivals) and all(value is None or 1e3 * value <= most for value, most in times)


def _rate(count: int, seconds: float) -> float | None:
    return None if math.isnan(seconds) else count / seconds
