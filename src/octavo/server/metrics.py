"""Prometheus metrics: octavo_*, and the same values under the names that others' dashboards query.

One registry per app, so that two apps in one process (tests) do not share counts.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from octavo.params import RequestMetrics, RequestOutput
from octavo.server.metric_names import METRICS, family
from octavo.server.scrape import EngineCollector, WithAliases

if TYPE_CHECKING:
    from octavo.server.engine import ServedEngine


class Histogram:
    """How many values fell into each bucket, and their sum. One thread observes.

    The numbers lie in one array from the start. Each of Python's own would be made anew with every value,
    where the requests of a crowd have left room, and hold a megabyte there when they are gone.
    """

    def __init__(self, name: str) -> None:
        self._name, self._bounds = name, (*METRICS[name].buckets, math.inf)
        self._numbers = array("d", [0.0]) * (len(self._bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._numbers[bisect_left(self._bounds, value)] += times
        self._numbers[-1] += value * times

    def family(self, labels: tuple[str, ...] = ()) -> Metric:
        """As a scrape has it, with the values of its labels."""
        known, numbers = METRICS[self._name], self._numbers[:]
        made = HistogramMetricFamily(f"octavo_{self._name}", known.text, labels=known.labels)
        bounds = map(floatToGoString, self._bounds)
        made.add_metric(labels, list(zip(bounds, accumulate(numbers[:-1]), strict=True)), numbers[-1])
        return made


class Metrics(Collector):
    """Counts what the server sees; asks the engine for the rest when scraped."""

    def __init__(self) -> None:
        inner = CollectorRegistry()
        self._histograms = {
            name: Histogram(name)
            for name, known in METRICS.items()
            if known.kind == "histogram" and known.labels
        }
        self._intervals = self._histograms["inter_token_latency_seconds"]
        # By the values of their labels, a number each, which is changed in its place (see Histogram).
        self._counts: dict[str, dict[tuple[str, ...], array[int]]] = {
            name: {} for name in ("request_success", "request_cut", "http_requests")
        }
        self._engine = EngineCollector()
        self._labels = ("", "0")  # of no model yet
        inner.register(self)
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

    def collect(self) -> Iterable[Metric]:
        """What was counted here. (render() says what there is beside.)"""
        for histogram in self._histograms.values() if self._engine.engine is not None else ():
            yield histogram.family(self._labels)
        for name, counts in self._counts.items():
            yield family(name, [(labels, count[0]) for labels, count in list(counts.items())])

    def _count(self, name: str, *labels: str) -> None:
        counts = self._counts[name]
        if (count := counts.get(labels)) is None:
            count = counts[labels] = array("q", [0])
        count[0] += 1

    def count_http(self, method: str, path: str, status: int) -> None:
        """One response."""
        self._count("http_requests", method, path, str(status))

    def observe_interval(self, seconds: float, tokens: int) -> None:
        """A streamed update of this many tokens came so long after the one before."""
        self._intervals.observe(seconds / tokens, tokens)

    def observe_end(self, output: RequestOutput | None, num_tokens: list[int], reason: str | None) -> None:
        """A prompt's request ended.

        Args:
            output: its last output; None if there was none.
            num_tokens: tokens generated, per completion.
            reason: "stop" or "length"; None: the client left, or the request failed.
        """
        if output is None or reason is None:
            self._count("request_cut", *self._labels)
            return
        self._count("request_success", *self._labels, reason)
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
