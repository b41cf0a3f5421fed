"""What is asked when /metrics is scraped: the engine's own counters, and every value under vLLM's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from octavo.server.engine import ServedEngine

LABELS = ("model_name", "engine")
OURS_ALONE = (
    "octavo_http",
    "octavo_request_cut",
    "octavo_startup_seconds",
    "octavo_grammar",
    "octavo_num_grammars",
)


class EngineCollector(Collector):
    """The engine's own counters, read at scrape time."""

    def __init__(self) -> None:
        self.engine: ServedEngine | None = None

    def labels(self) -> tuple[str, str]:
        return (self.engine.served_model_name if self.engine else "", "0")

    def collect(self) -> Iterable[Metric]:
        if self.engine is None:
            return
        stats = self.engine.stats()
        gauges = (
            ("num_requests_running", "Requests that compute now.", stats.running),
            ("num_requests_waiting", "Requests in the queue.", stats.waiting),
            ("kv_cache_usage_perc", "Share of the KV pages in use; 1 is all.", stats.kv_usage),
        )
        counters = (
            ("prompt_tokens", "Prompt tokens taken in.", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.generated_tokens),
            ("num_preemptions", "Requests pushed back to the queue.", stats.preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found there.", stats.prefix_hits),
            (
                "external_prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache's tier on disk.",
                stats.external_prefix_queries,
            ),
            ("external_prefix_cache_hits", "Prompt tokens found on disk.", stats.external_prefix_hits),
            ("spec_decode_num_drafts", "Drafts verified, one of a sequence a step.", stats.drafts.drafts),
            ("spec_decode_num_draft_tokens", "Drafted tokens verified.", stats.drafts.draft_tokens),
            (
                "spec_decode_num_accepted_tokens",
                "Drafted tokens that were the answer's own.",
                stats.drafts.accepted_tokens,
            ),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"octavo_{name}", text, labels=LABELS)
            gauge.add_metric(self.labels(), value)
            yield gauge
        yield from self._grammars(self.engine.grammars)
        start = GaugeMetricFamily(
            "octavo_startup_seconds", "What each phase of the start took, and each capture since.",
            labels=(*LABELS, "phase"),
        )  # fmt: skip
        for name, seconds in self.engine.phases.items():
            start.add_metric((*self.labels(), name), seconds)
        yield start
        for name, text, value in counters:
            counter = CounterMetricFamily(f"octavo_{name}", text, labels=LABELS)
            counter.add_metric(self.labels(), value)
            yield counter
        places = CounterMetricFamily(
            "octavo_spec_decode_num_accepted_tokens_per_pos", "The same by their place among those accepted.",
            labels=(*LABELS, "position"),
        )  # fmt: skip
        for place, count in enumerate(stats.drafts.accepted_at):
            places.add_metric((*self.labels(), str(place)), count)
        yield places

    def _grammars(self, stats: Any) -> Iterable[Metric]:
        gauges = (
            ("grammar_compiler_available", "1: grammars are compiled; 0: all new ones are refused.",
             int(stats.available)),
            ("num_grammars_compiling", "Grammars that are being compiled.", stats.running),
            ("num_grammars_waiting", "Grammars that wait to be compiled.", stats.waiting),
        )  # fmt: skip
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"octavo_{name}", text, labels=LABELS)
            gauge.add_metric(self.labels(), value)
            yield gauge
        counter = CounterMetricFamily(
            "octavo_grammars", "Grammars by what became of them.", labels=(*LABELS, "result")
        )
        results = {"compiled": stats.done, "invalid": stats.failed, "killed": stats.killed}
        for result, value in {**results, "overloaded": stats.refused}.items():
            counter.add_metric((*self.labels(), result), value)
        yield counter


class WithAliases(Collector):
    """Everything in a registry, and what vLLM has too once more under vLLM's name."""

    def __init__(self, inner: CollectorRegistry) -> None:
        self._inner = inner

    def collect(self) -> Iterable[Metric]:
        for metric in self._inner.collect():
            yield metric
            if not metric.name.startswith(OURS_ALONE):
                yield _renamed(metric, "octavo_", "vllm:")


def _renamed(metric: Metric, old: str, new: str) -> Metric:
    copy = Metric(new + metric.name.removeprefix(old), metric.documentation, metric.type)
    copy.samples = [
        Sample(new + sample.name.removeprefix(old), *sample[1:])
        for sample in metric.samples
        if not sample.name.endswith("_created")  # ours alone: vLLM's dashboards do not know it
    ]
    return copy
