"""A span for each request, for an OpenTelemetry collector. Imported only where one is named.

Attributes have the names of OpenTelemetry's conventions for HTTP and generative AI. The times within a
request, which these do not name, have vLLM's names; token counts have both.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import octavo
from octavo.errors import InvalidRequestError
from octavo.server.log_limit import quieten
from octavo.server.request_record import CLIENT_LEFT, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue
    from starlette.types import Scope

CLOSE_S = 3.0
"""At the end, spans that wait have so long to be sent."""
UNTRACED = ("GET", "HEAD", "OPTIONS")
"""Methods of probes and scrapes, which nobody wants to find among requests."""
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""gen_ai.operation.name by route."""
RENAMED = {"n": "choice.count"}
"""Numbers of SamplingParams that the conventions call otherwise."""
LATENCIES = {
    "queue": "time_in_queue",
    "time_to_first_token": "time_to_first_token",
    "prefill": "time_in_model_prefill",
    "decode": "time_in_model_decode",
}
"""gen_ai.latency.* by the names of RequestRecord.spans()."""


class Tracer:
    """Makes a span of each request that has ended (request_record.Reader).

    Spans are sent in batches, on a thread of the SDK's; where they come faster than the collector takes them,
    the SDK drops the newest and says so in the log.

    Args:
        provider: where spans go; closed with this.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("octavo", octavo.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, record: RequestRecord, scope: Scope) -> None:
        if record.method in UNTRACED:
            return
        told = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        operation = OPERATIONS.get(record.route) if record.model else None
        span = self._tracer.start_span(
            f"{operation} {record.model}" if operation else f"{record.method} {record.route}".rstrip(),
            self._propagator.extract(told),
            SpanKind.SERVER,
            attributes_of(record),
            start_time=record.begun_ns,
        )
        if (why := error_of(record)) is not None:
            span.set_attribute("error.type", why)
            span.set_status(Status(StatusCode.ERROR))
        span.end(record.begun_ns + int(record.duration_s * 1e9))

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send what waits, for so long at most: a collector that hangs does not hold the server."""
        closing = threading.Thread(target=self._provider.shutdown, name="otel-close", daemon=True)
        closing.start()
        closing.join(timeout_s)


def open_tracer(endpoint: str) -> Tracer:
    """A tracer that sends to a collector.

    The SDK's own variables (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER,
    OTEL_EXPORTER_OTLP_HEADERS) are heard by it.

    Raises:
        InvalidRequestError: the endpoint is no URL of http or https.
    """
    resource = Resource.create({"service.name": "octavo", "service.version": octavo.__version__})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    exporter = OTLPSpanExporter(endpoint=checked(endpoint))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    quieten("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
    return Tracer(provider)


def checked(endpoint: str) -> str:
    """The URL to post to: where only a host and a port are given, OTLP's path stands behind them.

    Raises:
        InvalidRequestError: it is no URL of http or https.
    """
    try:
        url = urlsplit(endpoint)
        host = url.hostname
        _ = url.port  # raises where it is no number
    except ValueError:
        host = None
    if host is None or url.scheme not in ("http", "https"):
        why = ": spans are sent over HTTP, not gRPC" if endpoint.startswith("grpc") else ""
        like = "a URL such as http://localhost:4318/v1/traces"
        raise InvalidRequestError(f"--otlp-traces-endpoint must be {like}, not {endpoint!r}{why}")
    return endpoint if url.path not in ("", "/") else f"{url.scheme}://{url.netloc}/v1/traces"


def error_of(record: RequestRecord) -> str | None:
    """error.type of a request that failed; None: it did not."""
    if record.status == CLIENT_LEFT or (record.status < 500 and not record.whole):
        return "client_left"
    if record.status >= 500:
        return str(record.status)
    if record.prompts > len(record.reasons) and record.status < 400:
        return "generation_failed"  # in the middle of a stream, whose status had been sent
    return None


def attributes_of(record: RequestRecord) -> dict[str, AttributeValue]:
    """What a span says of a request. Nothing of its texts."""
    found: dict[str, AttributeValue] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "url.path": record.path,
        "http.response.status_code": record.status,
        "gen_ai.request.id": record.request_id,
    }
    if record.model:
        found |= {
            "gen_ai.operation.name": OPERATIONS.get(record.route, "text_completion"),
            "gen_ai.provider.name": "octavo",
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.response.id": record.answer_id,
            "gen_ai.response.finish_reasons": tuple(record.reasons),
            "gen_ai.latency.e2e": record.duration_s,
        }
        counts = {
            "input_tokens": record.prompt_tokens,
            "output_tokens": record.completion_tokens,
            "cache_read.input_tokens": record.cached_tokens,
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.completion_tokens,
        }
        found |= {f"gen_ai.usage.{name}": count for name, count in counts.items()}
        found |= {f"gen_ai.request.{RENAMED.get(name, name)}": value for name, value in record.asked.items()}
        found |= {f"gen_ai.latency.{LATENCIES[name]}": seconds for name, seconds in record.spans().items()}
    return {name: value for name, value in found.items() if value not in ("", ())}
