"""The table of metrics is what a scrape has, and others' names stand for the same values."""

from __future__ import annotations

import asyncio
import json

import prometheus_client
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.stats import DraftCounts
from octavo.params import RequestMetrics, RequestOutput
from octavo.server.app import create_app
from octavo.server.metric_names import (
    METRICS,
    PROCESS,
    SECONDS,
    SUMS,
    exposed,
    exposed_elsewhere,
    histogram_family,
)
from octavo.server.metrics import Histogram, Metrics
from support.asgi import call, get, post
from support.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
GIGABYTE = 1 << 30

Values = dict[tuple[str, str], float]


@pytest.fixture
def engine() -> FakeEngine:
    memory = {"total": 80 * GIGABYTE, "used": 3 * GIGABYTE, "peak": 5 * GIGABYTE}
    engine = FakeEngine(device_memory=memory)
    engine.counts.drafts = DraftCounts(4, 12, 5, [3, 2])
    engine.watermark_lists = {"hit": 3, "made": 1}
    return engine


@pytest.fixture
def app(engine: FakeEngine) -> FastAPI:
    """With something of everything: answers, one without an end, a refusal, a connection given up."""
    app = create_app(engine)
    for max_tokens in (2, 9):
        post(app, CHAT, BODY | {"max_tokens": max_tokens, "stream": True})

    async def leave() -> None:
        engine.hold = asyncio.Event()
        await call(app, "POST", CHAT, BODY | {"stream": True}, leave_after=1)

    asyncio.run(leave())
    app.state.octavo.draining = True
    post(app, CHAT, BODY)
    app.state.edge.close("header_timeout")
    return app


def types(app: FastAPI) -> dict[str, str]:
    """Kinds of metrics by their names, as the scrape declares them."""
    lines = get(app, "/metrics").body.decode().splitlines()
    declared = (line.split()[2:] for line in lines if line.startswith("# TYPE "))
    return {name: kind for name, kind in declared if not name.endswith("_created")}


def values(app: FastAPI) -> Values:
    return {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
        for family in text_string_to_metric_families(get(app, "/metrics").body.decode())
        for sample in family.samples
    }


def test_the_table_is_what_a_scrape_has(app: FastAPI) -> None:
    own = {exposed(name): known.kind for name, known in {**METRICS, **PROCESS}.items()}
    vllm = {
        exposed_elsewhere(name, other): known.kind
        for name, known in METRICS.items()
        for other in known.others
        if other.startswith("vllm:")
    }
    found = types(app)
    assert {name: kind for name, kind in found.items() if not name.startswith("tgi_")} == own | vllm


def test_labels_are_those_of_the_table(app: FastAPI) -> None:
    labels: dict[str, set[str]] = {}
    for name, told in values(app):
        labels.setdefault(name, set()).update(json.loads(told))
    for name, known in METRICS.items():
        ends = ("_bucket", "_sum", "_count") if known.kind == "histogram" else ("",)
        for end in ends:
            more = {"le"} if end == "_bucket" else set()
            assert labels[exposed(name) + end] == set(known.labels) | more, name


def test_other_names_stand_for_the_same_values(app: FastAPI) -> None:
    found = values(app)
    for name, known in METRICS.items():
        for other in known.others:
            ours, theirs = exposed(name), exposed_elsewhere(name, other)
            for end in ("_bucket", "_sum", "_count") if known.kind == "histogram" else ("",):
                own = {labels: value for (at, labels), value in found.items() if at == ours + end}
                assert own, ours
                assert own == {labels: value for (at, labels), value in found.items() if at == theirs + end}


def test_sums_leave_out_the_other_labels(app: FastAPI) -> None:
    labels = '{"engine": "0", "model_name": "fake/model"}'
    found = values(app)
    assert found["tgi_request_success", labels] == 2
    assert found["tgi_request_count", labels] == 3
    assert found["tgi_request_failure", labels] == 1
    assert set(SUMS) <= {name for name, _ in found}


def test_names_are_each_said_once(app: FastAPI) -> None:
    """Prometheus refuses a whole scrape that says one series twice."""
    lines = get(app, "/metrics").body.decode().splitlines()
    series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    declared = [line for line in lines if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))


def test_other_names_leave_a_scrape_small(app: FastAPI) -> None:
    """They take no flag, because they cost less than twice the rest."""
    lines = get(app, "/metrics").body.decode().splitlines()
    others = [line for line in lines if not line.startswith("#") and line.startswith(("vllm:", "tgi_"))]
    own = [line for line in lines if not line.startswith("#") and line.startswith(("octavo_", "process_"))]
    assert len(others) < 2 * len(own)
    assert sum(map(len, lines)) < 100_000


def test_a_cpu_has_no_device_memory(app: FastAPI, engine: FakeEngine) -> None:
    labels = '{"engine": "0", "model_name": "fake/model"}'
    found = values(app)
    assert found["octavo_device_memory_used_bytes", labels] == 3 * GIGABYTE
    assert found["octavo_device_memory_peak_bytes", labels] == 5 * GIGABYTE
    engine.device_memory = {}
    assert not any(name.startswith("octavo_device_memory") for name, _ in values(app))


def test_the_process_has_threads_and_a_start(app: FastAPI) -> None:
    found = values(app)
    assert found["process_threads", "{}"] >= 1
    assert found["process_start_time_seconds", "{}"] > 1e9


@given(st.lists(st.floats(0, 400) | st.sampled_from(SECONDS), max_size=30), st.integers(1, 3))
def test_a_histogram_counts_as_prometheus_own_does(seen: list[float], times: int) -> None:
    name = "request_queue_time_seconds"
    ours, registry = Histogram(name), CollectorRegistry()
    known = prometheus_client.Histogram(
        f"octavo_{name}", "", METRICS[name].labels, buckets=METRICS[name].buckets, registry=registry
    )
    theirs = known.labels("m", "0")
    for value in seen:
        ours.observe(value, times)
        for _ in range(times):
            theirs.observe(value)
    (wanted,) = registry.collect()
    samples = histogram_family(name, ours.numbers, ("m", "0")).samples
    found = {(each.name, *each.labels.items()): each.value for each in samples}
    for sample in wanted.samples:
        if not sample.name.endswith("_created"):
            assert found.pop((sample.name, *sample.labels.items())) == pytest.approx(sample.value)
    assert not found


def test_counting_makes_no_number_anew(engine: FakeEngine) -> None:
    """Each would lie where a crowd has left room, and keep a megabyte there from the system."""
    metrics, done = Metrics(), RequestOutput("a", None, [1, 2], [], True, metrics=RequestMetrics(1.0))
    metrics.attach(engine)

    def counted() -> list[int]:
        metrics.count_http("POST", CHAT, 429)
        metrics.observe_interval(0.02, 3)
        metrics.observe_end(done, [3], "stop")
        metrics.observe_end(None, [], None)
        numbers = [each.numbers for each in metrics._histograms.values()]
        return [each.buffer_info()[0] for each in (*numbers, *metrics._counts.values())]

    places = counted()
    for _ in range(1000):
        assert counted() == places
    assert [count[0] for count in metrics._counts.values()] == [1001] * 3
