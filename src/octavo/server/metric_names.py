"""Every metric of /metrics in one table: what it says, its labels, and what other servers call it.

docs/reference/metrics.md is derived from it. Names stand behind `octavo_`, but for those of PROCESS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

MODEL = ("model_name", "engine")
"""Labels of what belongs to a model; of one engine, "0" as vLLM has it."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.5, 5.0)
TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)
LAGS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Described:
    """A metric.

    Attributes:
        kind: counter (its name ends with _total), gauge or histogram.
        buckets: upper bounds of a histogram's.
        others: names under which it is said once more, word for word: vLLM's and TGI's.
    """

    kind: str
    text: str
    labels: tuple[str, ...] = MODEL
    buckets: tuple[float, ...] = ()
    others: tuple[str, ...] = ()


def _engine(kind: str, text: str, *others: str, labels: tuple[str, ...] = MODEL) -> Described:
    return Described(kind, text, labels, others=others)


def _times(text: str, *others: str, buckets: tuple[float, ...] = SECONDS) -> Described:
    return Described("histogram", text, MODEL, buckets, others)


def _server(kind: str, text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Described:
    return Described(kind, text, labels, buckets)


METRICS: Mapping[str, Described] = {
    # What the engine does.
    "num_requests_running": _engine(
        "gauge", "Sequences that compute now.", "vllm:num_requests_running", "tgi_batch_current_size"
    ),
    "num_requests_waiting": _engine(
        "gauge", "Sequences in the queue.", "vllm:num_requests_waiting", "tgi_queue_size"
    ),
    "kv_cache_usage_perc": _engine(
        "gauge", "Share of the KV pages in use; 1 is all.",
        "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
    ),
    "prompt_tokens": _engine("counter", "Prompt tokens taken in.", "vllm:prompt_tokens"),
    "generation_tokens": _engine(
        "counter", "Tokens generated, those behind a stop string among them.", "vllm:generation_tokens"
    ),
    "num_preemptions": _engine("counter", "Requests pushed back to the queue.", "vllm:num_preemptions"),
    "prefix_cache_queries": _engine(
        "counter", "Prompt tokens looked up in the prefix cache.", "vllm:prefix_cache_queries"
    ),
    "prefix_cache_hits": _engine("counter", "Prompt tokens found there.", "vllm:prefix_cache_hits"),
    "external_prefix_cache_queries": _engine(
        "counter", "Prompt tokens looked up in the prefix cache's tier on disk.",
        "vllm:external_prefix_cache_queries",
    ),
    "external_prefix_cache_hits": _engine(
        "counter", "Prompt tokens found on disk.", "vllm:external_prefix_cache_hits"
    ),
    "spec_decode_num_drafts": _engine(
        "counter", "Drafts verified, one of a sequence a step.", "vllm:spec_decode_num_drafts"
    ),
    "spec_decode_num_draft_tokens": _engine(
        "counter", "Drafted tokens verified.", "vllm:spec_decode_num_draft_tokens"
    ),
    "spec_decode_num_accepted_tokens": _engine(
        "counter", "Drafted tokens that were drawn, as far as an answer's stop token.",
        "vllm:spec_decode_num_accepted_tokens",
    ),
    "spec_decode_num_accepted_tokens_per_pos": _engine(
        "counter", "The same by their place among those accepted.",
        "vllm:spec_decode_num_accepted_tokens_per_pos", labels=(*MODEL, "position"),
    ),
    "startup_seconds": _engine(
        "gauge", "What each phase of the start took, and each capture since.", labels=(*MODEL, "phase")
    ),
    "device_memory_bytes": _engine("gauge", "Bytes of memory that the GPU has."),
    "device_memory_used_bytes": _engine("gauge", "Of those, what this process holds now."),
    "device_memory_peak_bytes": _engine("gauge", "The most that it held."),
    # Requests that have ended.
    "time_to_first_token_seconds": _times(
        "From arrival to the first token.", "vllm:time_to_first_token_seconds"
    ),
    "inter_token_latency_seconds": _times(
        "Between tokens, as streamed responses saw them.",
        "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", buckets=STEP_SECONDS,
    ),
    "request_time_per_output_token_seconds": _times(
        "A request's mean time between tokens.", "vllm:request_time_per_output_token_seconds",
        "tgi_request_mean_time_per_token_duration", buckets=STEP_SECONDS,
    ),
    "e2e_request_latency_seconds": _times(
        "From arrival to the end.", "vllm:e2e_request_latency_seconds", "tgi_request_duration"
    ),
    "request_queue_time_seconds": _times(
        "From arrival to the first step.", "vllm:request_queue_time_seconds", "tgi_request_queue_duration"
    ),
    "request_prefill_time_seconds": _times(
        "From the first step to the first token.", "vllm:request_prefill_time_seconds"
    ),
    "request_decode_time_seconds": _times(
        "From the first token to the last.", "vllm:request_decode_time_seconds"
    ),
    "request_inference_time_seconds": _times(
        "From the first step to the last token.", "vllm:request_inference_time_seconds",
        "tgi_request_inference_duration",
    ),
    "request_prompt_tokens": _times(
        "Prompt lengths.", "vllm:request_prompt_tokens", "tgi_request_input_length", buckets=TOKENS
    ),
    "request_generation_tokens": _times(
        "Tokens generated for a request, all of its n.", "vllm:request_generation_tokens",
        "tgi_request_generated_tokens", buckets=TOKENS,
    ),
    "request_max_num_generation_tokens": _times(
        "The longest of a request's n.", "vllm:request_max_num_generation_tokens", buckets=TOKENS
    ),
    "request_success": _engine(
        "counter", "Requests answered to their end, by reason.", "vllm:request_success",
        labels=(*MODEL, "finished_reason"),
    ),
    "request_cut": _engine(
        "counter", "Requests without an end: the client left, or they failed.", "tgi_request_failure"
    ),
    # The grammar compiler's processes and threads.
    "grammar_compiler_available": _engine("gauge", "1: grammars are compiled; 0: all new ones are refused."),
    "num_grammars_compiling": _engine("gauge", "Grammars that are being compiled."),
    "num_grammars_waiting": _engine("gauge", "Grammars that wait to be compiled."),
    "num_grammars_abandoned": _engine("gauge", "Threads that grammars hold whose time was over."),
    "grammars": _engine("counter", "Grammars by what became of them.", labels=(*MODEL, "result")),
    "watermark_lists": _engine(
        "counter", "Green lists of watermarks, kept (hit) or made.", labels=(*MODEL, "result")
    ),
    # The door, the event loop, the process, the build.
    "http_requests": _server("counter", "Responses sent.", "method", "path", "status"),
    "http_requests_in_flight": _server("gauge", "Requests that hold a place."),
    "http_buffered_bytes": _server("gauge", "Bytes of bodies whose answers have not begun."),
    "http_rejections": _server("counter", "Requests refused before an endpoint.", "reason"),
    "connections_closed": _server("counter", "Connections refused or given up.", "reason"),
    "healthy": _server("gauge", "1 while the engine makes progress."),
    "draining": _server("gauge", "1 after a signal."),
    "event_loop_lag_seconds": _server(
        "histogram", "How late the event loop was for a timer of its own: it stood still for so long.",
        buckets=LAGS,
    ),
    "log_lines_dropped": _server("counter", "Log lines that were not written: too many were before them."),
    "build_info": _server("gauge", "What runs here.", "version", "python"),
}  # fmt: skip

PROCESS: Mapping[str, Described] = {
    "process_cpu_seconds": _server("counter", "Seconds of CPU, the system's part included."),
    "process_resident_memory_bytes": _server("gauge", "Resident memory (RSS)."),
    "process_virtual_memory_bytes": _server("gauge", "Virtual memory."),
    "process_open_fds": _server("gauge", "Open files, sockets among them."),
    "process_max_fds": _server("gauge", "As many may be open."),
    "process_start_time_seconds": _server("gauge", "When the process began, in seconds since 1970."),
    "process_threads": _server("gauge", "Threads, native ones included."),
}
"""By the names that Prometheus's clients have for them; where the system has no /proc they are missing."""

SUMS: Mapping[str, tuple[str, ...]] = {
    "tgi_request_count": ("request_success", "request_cut"),
    "tgi_request_success": ("request_success",),
}
"""Names of others that stand for the sum of ours, whatever labels those have beside the model's."""


HISTOGRAMS = tuple(name for name, known in METRICS.items() if known.kind == "histogram" and known.labels)
"""Those of requests. (The event loop's has no labels.)"""


def exposed(name: str) -> str:
    """The name as a scrape has it, but for the suffixes of a histogram's samples."""
    known = {**METRICS, **PROCESS}[name]
    prefix, suffix = "" if name in PROCESS else "octavo_", "_total" if known.kind == "counter" else ""
    return f"{prefix}{name}{suffix}"


def exposed_elsewhere(name: str, other: str) -> str:
    """The same of another's name for it: vLLM's counters end with _total, TGI's do not."""
    return f"{other}_total" if METRICS[name].kind == "counter" and other.startswith("vllm:") else other


def family(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """A counter or gauge with its samples: (values of its labels, value)."""
    known = {**METRICS, **PROCESS}[name]
    kind = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
    made = kind(name if name in PROCESS else f"octavo_{name}", known.text, labels=known.labels)
    for labels, value in samples:
        made.add_metric(labels, value)
    return made


def histogram_family(name: str, numbers: Sequence[float], labels: tuple[str, ...] = ()) -> Metric:
    """A histogram with its samples.

    Args:
        numbers: values in each bucket, in those above all bounds, and the sum of all.
        labels: their values.
    """
    known = METRICS[name]
    bounds = map(floatToGoString, (*known.buckets, float("inf")))
    made = HistogramMetricFamily(f"octavo_{name}", known.text, labels=known.labels)
    made.add_metric(labels, list(zip(bounds, accumulate(numbers[:-1]), strict=True)), numbers[-1])
    return made
