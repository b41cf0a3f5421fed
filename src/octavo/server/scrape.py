"""Collectors of /metrics: they read the engine's own counters, and repeat values under others' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from octavo.server.metric_names import METRICS, MODEL, SUMS, family, histogram_family

if TYPE_CHECKING:
    from octavo.server.engine import ServedEngine
    from octavo.server.metrics import Histogram

Samples = Mapping[tuple[str, ...], float]
"""Values by their labels, the model's left out."""


class EngineCollector(Collector):
    """The engine's own counters, read at scrape time."""

    def __init__(self) -> None:
        self.engine: ServedEngine | None = None

    def labels(self) -> tuple[str, str]:
        return (self.engine.served_model_name if self.engine else "", "0")

    def collect(self) -> Iterable[Metric]:
        if self.engine is None:
            return
        labels = self.labels()
        for name, samples in self._samples(self.engine).items():
            yield family(name, [((*labels, *more), value) for more, value in samples.items()])

    def _samples(self, engine: ServedEngine) -> dict[str, Samples]:
        stats, grammars, memory = engine.stats(), engine.grammars, engine.device_memory
        numbers: dict[str, float] = {
            "num_requests_running": stats.running,
            "num_requests_waiting": stats.waiting,
            "kv_cache_usage_perc": stats.kv_usage,
            "prompt_tokens": stats.prompt_tokens,
            "generation_tokens": stats.generated_tokens,
            "num_preemptions": stats.preemptions,
            "prefix_cache_queries": stats.prefix_queries,
            "prefix_cache_hits": stats.prefix_hits,
            "external_prefix_cache_queries": stats.external_prefix_queries,
            "external_prefix_cache_hits": stats.external_prefix_hits,
            "spec_decode_num_drafts": stats.drafts.drafts,
            "spec_decode_num_draft_tokens": stats.drafts.draft_tokens,
            "spec_decode_num_accepted_tokens": stats.drafts.accepted_tokens,
            "grammar_compiler_available": int(grammars.available),
            "num_grammars_compiling": grammars.running,
            "num_grammars_waiting": grammars.waiting,
            "num_grammars_abandoned": grammars.abandoned,
        }
        results = {"compiled": grammars.done, "invalid": grammars.failed, "killed": grammars.killed}
        several: dict[str, Mapping[str, float]] = {
            "startup_seconds": engine.phases,
            "grammars": {**results, "overloaded": grammars.refused},
            "watermark_lists": engine.watermark_lists,
            "spec_decode_num_accepted_tokens_per_pos": {
                str(place): count for place, count in enumerate(stats.drafts.accepted_at)
            },
        }
        samples: dict[str, Samples] = {name: {(): value} for name, value in numbers.items()}
        for name, found in several.items():
            samples[name] = {(label,): value for label, value in found.items()}
        for kind, name in DEVICE.items():
            samples[name] = {(): memory[kind]} if kind in memory else {}
        return samples


DEVICE = {
    "total": "device_memory_bytes",
    "used": "device_memory_used_bytes",
    "peak": "device_memory_peak_bytes",
}
"""Metrics by what ServedEngine.device_memory calls it; a CPU has none of them."""


class CountsCollector(Collector):
    """What Metrics counts: nothing of requests before there is an engine.

    Args:
        counts: a number each by the counter's name and its labels' values.
    """

    def __init__(
        self,
        histograms: Iterable[Histogram],
        counts: Mapping[tuple[str, ...], Sequence[int]],
        engine: EngineCollector,
    ) -> None:
        self._histograms, self._counts, self._engine = histograms, counts, engine

    def collect(self) -> Iterable[Metric]:
        if self._engine.engine is not None:
            for each in self._histograms:
                yield histogram_family(each.name, each.numbers[:], self._engine.labels())
        counts = list(self._counts.items())  # the event loop goes on counting
        for name in ("request_success", "request_cut", "http_requests"):
            yield family(name, [(key[1:], count[0]) for key, count in counts if key[0] == name])


class WithAliases(Collector):
    """Everything in a registry, and some of it once more under the names that other servers have for it.

    That takes no flag: a scrape is made on a thread, every 15 seconds or so, and takes some 4 ms of CPU where
    it would take 2 without.
    """

    def __init__(self, inner: CollectorRegistry) -> None:
        self._inner = inner

    def collect(self) -> Iterable[Metric]:
        seen: dict[str, Metric] = {}
        for metric in self._inner.collect():
            yield metric
            name = metric.name.removeprefix("octavo_")
            seen[name] = metric
            for other in METRICS[name].others if name in METRICS else ():
                yield renamed(metric, other, bare=other.startswith("tgi_"))
        for other, names in SUMS.items():
            yield summed(other, [seen[name] for name in names if name in seen])


def renamed(metric: Metric, name: str, bare: bool) -> Metric:
    """The same values under another name.

    Args:
        bare: a counter's sample has that name, without _total; the text format calls such a one untyped.
    """
    untyped = bare and metric.type == "counter"
    copy = Metric(name, metric.documentation, "unknown" if untyped else metric.type)
    for sample in metric.samples:
        suffix = sample.name.removeprefix(metric.name)
        if suffix != "_created":  # ours alone: no dashboard of others' knows it
            copy.samples.append(Sample(name + ("" if untyped else suffix), *sample[1:]))
    return copy


def summed(name: str, metrics: Iterable[Metric]) -> Metric:
    """One value for each model: the sum of counters over all other labels."""
    sums: dict[tuple[str, ...], float] = {}
    made = Metric(name, "The sum of " + ", ".join(SUMS[name]) + ".", "unknown")
    for metric in metrics:
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                labels = tuple(sample.labels[label] for label in MODEL)
                sums[labels] = sums.get(labels, 0.0) + sample.value
    for labels, value in sums.items():
        made.add_sample(name, dict(zip(MODEL, labels, strict=True)), value)
    return made
