"""Prometheus metrics: octavo_*, and the same values under the names that others' dashboards query.

One registry per app, so that two apps in one process (tests) do not share counts.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from octavo.params import RequestMetrics, RequestOutput
from octavo.server.metric_names import HISTOGRAMS, METRICS
from octavo.server.scrape import CountsCollector, EngineCollector, WithAliases

if TYPE_CHECKING:
    from octavo.server.engine import ServedEngine


class Histogram:
    """How many values fell into each bucket, and their sum. One thread observes.

    The numbers lie in one array from the start. Each of Python's own would be made anew with every value,
    where the requests of a crowd have left room, and hold a megabyte there when they are gone.
    """

    def __init__(self, name: str) -> None:
        self.name, self._bounds = name, (*METRICS[name].buckets, math.inf)
        self.numbers = array("d", [0.0]) * (len(self._bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.numbers[bisect_left(self._bounds, value)] += times
        self.numbers[-1] += value * times


class Metrics:
    """Counts what the server sees; asks the engine for the rest when scraped."""

    def __init__(self) -> None:
        inner = CollectorRegistry()
        self._histograms = {name: Histogram(name) for name in HISTOGRAMS}
        # By a counter's name and its labels' values, a number each, which is changed in its place.
        self._counts: defaultdict[tuple[str, ...], array[int]] = defaultdict(lambda: array("q", [0]))
        self._engine = EngineCollector()
        self._labels = ("", "0")  # of no model yet
        inner.register(CountsCollector(self._histograms.values(), self._counts, self._engine))
        inner.register(self._engine)
        self._registry = CollectorRegistry()
        self._registry.register(WithAliases(inner))

    def attach(self, engine: ServedEngine) -> None:
        """Report this engine's counters from now on."""
        self._engine.engine = engine
        self._labels = self._engine.labels()

    def add(self, collector: Collector) -> None:
        """Report what this one knows, too."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def count_http(self, method: str, path: str, status: int) -> None:
        """One response."""
        self._counts["http_requests", method, path, str(status)][0] += 1

    def observe_interval(self, seconds: float, tokens: int) -> None:
        """A streamed update of this many tokens came so long after the one before."""
        self._histograms["inter_token_latency_seconds"].observe(seconds / tokens, tokens)

    def observe_end(self, output: RequestOutput | None, num_tokens: list[int], reason: str | None) -> None:
        """A prompt's request ended.

        Args:
            output: its last output; None if there was none.
            num_tokens: tokens generated, per completion.
            reason: "stop" or "length"; None: the client left, or the request failed.
        """
        if output is None or reason is None:
            self._counts["request_cut", *self._labels][0] += 1
            return
        self._counts["request_success", *self._labels, reason][0] += 1
        values: dict[str, float] = {
            "request_prompt_tokens": output.num_prompt_tokens,
            "request_generation_tokens": sum(num_tokens),
            "request_max_num_generation_tokens": max(num_tokens, default=0),
        }
        if output.metrics is not None:
            values.update(_durations(output.metrics, max(num_tokens, default=0)))
        for name, value in values.items():
            self._histograms[name].observe(value)


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
