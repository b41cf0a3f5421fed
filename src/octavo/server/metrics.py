"""Prometheus metrics: octavo_*, and the same values under the names that others' dashboards query.

One registry per app, so that two apps in one process (tests) do not share counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from octavo.params import RequestMetrics, RequestOutput
from octavo.server.metric_names import METRICS
from octavo.server.scrape import EngineCollector, WithAliases

if TYPE_CHECKING:
    from octavo.server.engine import ServedEngine


class Metrics:
    """Counts what the server sees; asks the engine for the rest when scraped."""

    def __init__(self) -> None:
        inner = CollectorRegistry()
        self._histograms = {
            name: Histogram(f"octavo_{name}", known.text, known.labels, buckets=known.buckets, registry=inner)
            for name, known in METRICS.items()
            if known.kind == "histogram" and known.labels
        }
        self._success, self._cut, self._http = (
            Counter(f"octavo_{name}", METRICS[name].text, METRICS[name].labels, registry=inner)
            for name in ("request_success", "request_cut", "http_requests")
        )
        self._engine = EngineCollector()
        self._labels = ("", "0")  # of no model yet
        self._intervals: Histogram | None = None  # its labels looked up once, not at every token
        inner.register(self._engine)
        self._registry = CollectorRegistry()
        self._registry.register(WithAliases(inner))

    def attach(self, engine: ServedEngine) -> None:
        """Report this engine's counters from now on."""
        self._engine.engine = engine
        self._labels = self._engine.labels()
        self._intervals = self._histograms["inter_token_latency_seconds"].labels(*self._labels)

    def add(self, collector: Collector) -> None:
        """Report what this one knows, too."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def count_http(self, method: str, path: str, status: int) -> None:
        """One response."""
        self._http.labels(method, path, str(status)).inc()

    def observe_interval(self, seconds: float, tokens: int) -> None:
        """A streamed update of this many tokens came so long after the one before."""
        if self._intervals is None:
            return
        for _ in range(tokens):
            self._intervals.observe(seconds / tokens)

    def observe_end(self, output: RequestOutput | None, num_tokens: list[int], reason: str | None) -> None:
        """A prompt's request ended.

        Args:
            output: its last output; None if there was none.
            num_tokens: tokens generated, per completion.
            reason: "stop" or "length"; None: the client left, or the request failed.
        """
        labels = self._labels
        if output is None or reason is None:
            self._cut.labels(*labels).inc()
            return
        self._success.labels(*labels, reason).inc()
        values: dict[str, float] = {
            "request_prompt_tokens": output.num_prompt_tokens,
            "request_generation_tokens": sum(num_tokens),
            "request_max_num_generation_tokens": max(num_tokens, default=0),
        }
        if output.metrics is not None:
            values.update(_durations(output.metrics, max(num_tokens, default=0)))
        for name, value in values.items():
            self._histograms[name].labels(*labels).observe(value)


def _durations(times: RequestMetrics, longest: int) -> Iterator[tuple[str, float]]:
    """The spans between a request's moments, where both are known."""
    arrival, scheduled = times.arrival_time, times.first_scheduled_time
    first, last, end = times.first_token_time, times.last_token_time, times.finished_time
    if scheduled is not None:
        yield "request_queue_time_seconds", scheduled - arrival
    if first is not None:
        yield "time_to_first_token_seconds", first - arrival
        if scheduled is not None:
            yield "request_prefill_time_seconds", first - scheduled
        if last is not None:
            yield "request_decode_time_seconds", last - first
            if scheduled is not None:
                yield "request_inference_time_seconds", last - scheduled
            if longest > 1:
                yield "request_time_per_output_token_seconds", (last - first) / (longest - 1)
    if end is not None:
        yield "e2e_request_latency_seconds", end - arrival
