"""Spans for OpenTelemetry, collected in memory and by a server on loopback."""

from __future__ import annotations

import asyncio
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from octavo.errors import InvalidRequestError, OverloadedError, RequestFailedError
from octavo.server.app import create_app
from octavo.server.edge import Edge, EdgeRules
from octavo.server.request_record import Recorded
from octavo.server.tracing import Tracer, checked, open_tracer
from support.asgi import Reply, call
from support.cli import environment
from support.fake_engine import FakeEngine
from support.live import CHAT

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi s3cr3t"}]}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    """An app whose spans are kept here."""

    def __init__(self, engine: FakeEngine | None = None) -> None:
        self._spans, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        app = create_app(engine or FakeEngine())
        self._app = Recorded(Edge(app, EdgeRules()), app.state.octavo, (Tracer(provider),))

    def ask(self, path: str, body: Any = None, method: str = "POST", **options: Any) -> Reply:
        return asyncio.run(call(self._app, method, path, body, **options))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._spans.get_finished_spans()

    def span(self) -> ReadableSpan:
        (found,) = self.spans
        return found


def test_a_span_says_what_a_request_did() -> None:
    traced = Traced()
    asked = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.75, "stream": True}
    reply = traced.ask(CHAT, BODY | asked, headers={"x-request-id": "mine"})
    span = traced.span()
    assert (span.name, span.kind, span.status.status_code) == (
        "chat fake/model",
        SpanKind.SERVER,
        StatusCode.UNSET,
    )
    told = dict(span.attributes or {})
    expected = {
        "http.request.method": "POST",
        "http.route": CHAT,
        "url.path": CHAT,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.id": "mine",
        "gen_ai.request.model": "fake/model",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.model": "fake/model",
        "gen_ai.response.id": reply.events()[0]["id"],
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": len("user:Hi s3cr3t\nassistant:"),
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.prompt_tokens": len("user:Hi s3cr3t\nassistant:"),
        "gen_ai.usage.completion_tokens": 3,
    }
    assert {name: told.get(name) for name in expected} == expected
    latencies = {name: value for name, value in told.items() if name.startswith("gen_ai.latency.")}
    names = ("e2e", "time_in_queue", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode")
    assert set(latencies) == {f"gen_ai.latency.{name}" for name in names}
    assert 0 <= latencies["gen_ai.latency.time_to_first_token"] <= latencies["gen_ai.latency.e2e"]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == int(told["gen_ai.latency.e2e"] * 1e9)
    assert "s3cr3t" not in span.to_json()


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"prompt": "a"}, "text_completion fake/model"),
        ("/v1/messages", {"messages": BODY["messages"], "max_tokens": 4}, "chat fake/model"),
        ("/v1/responses", {"input": "a"}, "chat fake/model"),
        ("/v1/embeddings", {"input": "a"}, "embeddings fake/model"),
        ("/tokenize", {"prompt": "a"}, "POST /tokenize"),
        ("/nowhere", {}, "POST other"),
    ],
)
def test_spans_are_named_by_what_was_asked(path: str, body: Any, name: str) -> None:
    traced = Traced()
    traced.ask(path, body)
    assert traced.span().name == name


def test_a_callers_trace_is_gone_on_with() -> None:
    traced = Traced()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=7"}
    traced.ask(CHAT, BODY, headers=headers)
    span = traced.span()
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == PARENT
    assert span.context is not None
    assert format(span.context.trace_id, "032x") == TRACE
    assert span.context.trace_state["vendor"] == "7"


@pytest.mark.parametrize("given", [f"00-{TRACE}-{PARENT}-00", "nonsense", "00-" + "0" * 32 + f"-{PARENT}-01"])
def test_a_caller_that_samples_out_or_sends_nonsense(given: str) -> None:
    traced = Traced()
    assert traced.ask(CHAT, BODY, headers={"traceparent": given}).status == 200
    sampled = [span for span in traced.spans if span.parent is None]
    assert len(traced.spans) == len(sampled) == (0 if given.endswith("-00") else 1)


def test_probes_and_scrapes_are_not_traced() -> None:
    traced = Traced()
    for path in ("/health", "/metrics", "/v1/models"):
        traced.ask(path, method="GET")
    assert traced.spans == ()


@pytest.mark.parametrize(
    ("engine", "body", "why"),
    [
        (FakeEngine(), BODY, None),
        (FakeEngine(), {"messages": 3}, None),
        (FakeEngine(full=OverloadedError("full", 1.0)), BODY, None),
        (FakeEngine(refuse=RuntimeError("own words")), BODY, "500"),
        (
            FakeEngine(fail_after=(2, RequestFailedError("own words"))),
            BODY | {"stream": True},
            "generation_failed",
        ),
    ],
    ids=["good", "bad", "refused", "failed", "failed midway"],
)
def test_errors(engine: FakeEngine, body: Any, why: str | None) -> None:
    traced = Traced(engine)
    traced.ask(CHAT, body)
    span = traced.span()
    assert span.status.status_code == (StatusCode.UNSET if why is None else StatusCode.ERROR)
    assert (span.attributes or {}).get("error.type") == why
    assert "own words" not in span.to_json()


def test_a_client_that_left_is_an_error() -> None:
    traced = Traced(FakeEngine(hold=asyncio.Event()))
    traced.ask(CHAT, BODY | {"stream": True}, leave_after=1)
    assert (traced.span().attributes or {})["error.type"] == "client_left"


def test_nothing_of_a_request_can_make_a_span_that_is_refused() -> None:
    """Attributes are numbers, names and lists of names: OTLP has no others."""
    traced = Traced()
    traced.ask(CHAT, BODY | {"seed": 2**64 - 1, "temperature": 0, "top_k": -1, "n": 2, "max_tokens": None})
    for value in (traced.span().attributes or {}).values():
        assert isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 2**63) or all(
            isinstance(each, str) for each in value
        )  # fmt: skip


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """(its address, the (path, body) of each request)."""
    taken: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", taken
        server.shutdown()
        thread.join()


def test_spans_reach_a_collector_at_the_latest_when_the_server_ends() -> None:
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with collector() as (address, taken):
        tracer = open_tracer(address)
        app = create_app(FakeEngine())
        traced = Recorded(Edge(app, EdgeRules()), app.state.octavo, (tracer,))
        assert asyncio.run(call(traced, "POST", CHAT, BODY)).status == 200
        tracer.close(timeout_s=60)
    ((path, body),) = taken
    assert path == "/v1/traces"
    (sent,) = MessageToDict(ExportTraceServiceRequest.FromString(body))["resourceSpans"]
    resource = {each["key"]: each["value"]["stringValue"] for each in sent["resource"]["attributes"]}
    assert resource["service.name"] == "octavo"
    assert sent["scopeSpans"][0]["spans"][0]["name"] == "chat fake/model"
    assert b"s3cr3t" not in body


def test_a_collector_that_hangs_does_not_hold_the_server() -> None:
    never = threading.Event()

    class Hanging(TracerProvider):
        def shutdown(self) -> None:
            assert not never.wait(60), "the test waited for it"

    Tracer(Hanging()).close(timeout_s=0.01)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://[::1]:4318/", "https://[::1]:4318/v1/traces"),
        ("https://otel.example/own/path", "https://otel.example/own/path"),
    ],
)
def test_endpoints(given: str, used: str) -> None:
    assert checked(given) == used


@pytest.mark.parametrize(
    "given", ["", "localhost:4318", "http://", "http://h:port", "file:///a", "grpc://h:4317"]
)
def test_what_is_no_endpoint(given: str) -> None:
    with pytest.raises(InvalidRequestError, match="--otlp-traces-endpoint must be a URL") as caught:
        checked(given)
    assert ("gRPC" in str(caught.value)) is given.startswith("grpc")


def test_nothing_is_imported_where_no_collector_is_named() -> None:
    """Its SDK, that is: of its API others import what they need."""
    script = (
        "import sys; from octavo.cli._observe import ObserveFlags; from octavo.server import app, run; "
        "o = ObserveFlags(access_log=True).observers(); o.at_work().__enter__(); app.create_app(None); "
        "wanted = 'opentelemetry.sdk', 'opentelemetry.exporter', 'octavo.server.tracing'; "
        "print([m for m in sys.modules if m.startswith(wanted)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
