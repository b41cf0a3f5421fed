"""Mistakes in what writes requests down, and in what says metrics once more: each is noticed."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import sys
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from octavo.engine.request import EngineRequest
from octavo.params import RequestMetrics, RequestOutput, SamplingParams
from octavo.server import log_lines, request_record, scrape
from support.source_mutants import Cases, checked, mistaken, must_die

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/a b",
    "raw_path": b"/a%20b",
    "query_string": b"key=s3cr3t",
    "headers": [(b"authorization", b"Bearer s3cr3t")],
    "http_version": "1.1",
    "client": ("192.0.2.1", 7),
}


def output(prompt: int, cached: int, *times: float) -> RequestOutput:
    return RequestOutput("r", None, [0] * prompt, [], True, None, RequestMetrics(*times), cached)


def keeps_no_query(of: Any) -> None:
    record = of.RequestRecord.of(SCOPE)
    assert (record.method, record.path, record.client) == ("POST", "/a%20b", "192.0.2.1:7")
    assert "s3cr3t" not in repr(record)


def bounds_what_a_client_names(of: Any) -> None:
    record = of.RequestRecord.of({**SCOPE, "raw_path": b"/" + b"x" * 10_000, "method": "ANYTHING"})
    assert (record.method, len(record.path)) == ("other", of.MAX_PATH)
    other = of.RequestRecord.of({**SCOPE, "method": "HEAD", "client": None})
    assert (other.method, other.client) == ("HEAD", "-")


def adds_up_its_prompts(of: Any) -> None:
    record = of.RequestRecord.of(SCOPE)
    record.note_end(output(5, 2, 10.0, 11.0, 13.0, 20.0), [3, 4], "stop")
    record.note_end(output(6, 1, 9.0, 12.0, 14.0, 18.0), [1], "length")
    record.note_end(None, [], None)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (11, 3, 8)
    assert (record.prompts, record.reasons) == (3, ["stop", "length"])
    assert record.spans() == {"queue": 2.0, "time_to_first_token": 4.0, "prefill": 2.0, "decode": 7.0}


def says_no_span_whose_moment_is_missing(of: Any) -> None:
    record = of.RequestRecord.of(SCOPE)
    assert record.spans() == {}
    record.note_end(output(1, 0, 10.0, 11.0), [], None)
    assert record.spans() == {"queue": 1.0}


class Queue:
    retry_after_s = 1.0

    async def begin(self, engine: Any, request: EngineRequest) -> str:
        return request.request_id


def asked_of(of: Any, params: SamplingParams, requests: int = 1) -> Any:
    """The record of a request with so many prompts."""
    record, queue = of.RequestRecord.of(SCOPE), of.RecordingQueue(Queue())

    async def ask() -> None:
        of.CURRENT.set(record)
        for index in range(requests):
            name = f"a-{index}"
            engine = SimpleNamespace(served_model_name="m")
            assert await queue.begin(engine, EngineRequest(name, [1], params)) == name

    asyncio.run(ask())
    return record


def keeps_numbers_of_what_was_asked(of: Any) -> None:
    record = asked_of(of, SamplingParams(temperature=0.5, max_tokens=None, stop="s3cr3t", seed=3), 2)
    assert (record.model, record.answer_id) == ("m", "a-0")
    assert record.asked["temperature"] == 0.5
    assert "max_tokens" not in record.asked
    assert all(isinstance(value, (int, float)) for value in record.asked.values())
    assert "s3cr3t" not in repr(record)


def asks_an_embedding_for_no_numbers(of: Any) -> None:
    assert asked_of(of, SamplingParams(pooling="mean")).asked == {}


def drops_what_finds_no_room(of: Any) -> None:
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"-" * size)  # nothing is taken until somebody reads
    lines = of.LineWriter(writer, max_waiting=8)
    for text in ("too long\n", "abcdefg\n", "x\n"):
        lines.put(text)
    assert lines.dropped == 2
    os.read(reader, size)
    lines.close(timeout_s=60)
    assert os.read(reader, size) == b"abcdefg\n"
    assert lines._room == 8, "room comes back with what was written"
    lines.put("y\n")
    assert lines.dropped == 3, "it was closed"
    os.close(reader)
    os.close(writer)


def line(of: Any, text: str = "x", **extra: Any) -> dict[str, Any]:
    record = logging.LogRecord("a", logging.WARNING, "", 0, "%s", (text,), None)
    record.__dict__.update(extra)
    found: dict[str, Any] = json.loads(of.JsonFormatter().format(record))
    return found


def bounds_a_line(of: Any) -> None:
    try:
        raise ValueError("y" * 10**5 + " its end")
    except ValueError:
        told = line(of, "x" * 10**5, exc_info=sys.exc_info())
    assert len(told["message"]) == len(told["exception"]) == of.MAX_TEXT
    assert told["exception"].endswith(" its end"), "which says what it was"
    assert told["time"].endswith("Z")
    assert (told["level"], told["logger"]) == ("warning", "a")


def says_what_a_request_did(of: Any) -> None:
    record = request_record.RequestRecord.of(SCOPE)
    record.ended, record.status = record.begun + 0.25, 200
    told = of.fields_of(record)
    assert told == {
        "client": "192.0.2.1:7",
        "method": "POST",
        "path": "/a%20b",
        "status": 200,
        "duration_s": 0.25,
        "cut": True,
    }
    record.whole, record.model = True, "m"
    record.note_end(output(5, 2, 10.0, 11.0), [3], None)
    told = of.fields_of(record)
    assert "cut" not in told
    assert "finish_reasons" not in told
    assert (told["model"], told["completion_tokens"], told["queue_s"]) == ("m", 3, 1.0)


def renames_and_sums(of: Any) -> None:
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    done = Counter("octavo_request_success", "a", (*labels, "finished_reason"), registry=registry)
    cut = Counter("octavo_request_cut", "b", labels, registry=registry)
    done.labels("m", "0", "stop").inc(2)
    done.labels("m", "0", "length").inc(3)
    cut.labels("m", "0").inc()
    found = [
        (sample.name, sample.labels.get("finished_reason"), sample.value, metric.type)
        for metric in of.WithAliases(registry).collect()
        for sample in metric.samples
        if not metric.name.startswith("octavo_")
    ]
    assert sorted(found, key=str) == [
        ("tgi_request_count", None, 6.0, "unknown"),
        ("tgi_request_failure", None, 1.0, "unknown"),
        ("tgi_request_success", None, 5.0, "unknown"),
        ("vllm:request_success_total", "length", 3.0, "counter"),
        ("vllm:request_success_total", "stop", 2.0, "counter"),
    ]


RECORD: tuple[tuple[str, str], ...] = (
    ('scope.get("raw_path") or scope["path"]', 'scope["raw_path"] + scope["query_string"] or scope["path"]'),
    ("raw[:MAX_PATH]", "raw"),
    ('scope["method"] in METHODS or', "True or"),
    ('or scope["method"] == "HEAD"', ""),
    ('if client else "-"', 'if client else ""'),
    ("arrival = min(", "arrival = max("),
    ("last = max(", "last = min("),
    ('"prefill": (scheduled, first)', '"prefill": (arrival, first)'),
    ("self.prompt_tokens +=", "self.prompt_tokens ="),
    ("self.cached_tokens +=", "self.cached_tokens ="),
    ("+= sum(num_tokens)", "+= max(num_tokens, default=0)"),
    ("if reason is not None:", "if True:"),
    ("self.prompts += 1", "self.prompts = 1"),
    ('ASKED = ("max_tokens",', 'ASKED = ("stop", "max_tokens",'),
    ("{} if request.params.pooling else ", ""),
    ("and not record.model:", ":"),
    ("for name, value in given.items() if value is not None", "for name, value in given.items()"),
)
LINES = (
    ("len(line) > self._room", "len(line) > 8"),
    ("self._room -= len(line)", "pass"),
    ("self._room += len(text)", "pass"),
    ("if self._closing or", "if"),
    (".getMessage()[:MAX_TEXT]", ".getMessage()"),
    ("[-MAX_TEXT:]", "[:MAX_TEXT]"),
    ("if not record.whole:", "if record.whole:"),
    ('if value not in ("", [])', ""),
    ('"completion_tokens": record.completion_tokens', '"completion_tokens": record.prompt_tokens'),
)
SCRAPE = (
    ('if suffix != "_created"', "if True"),
    ('"" if untyped else suffix', "suffix"),
    ('"unknown" if untyped else metric.type', "metric.type"),
    ('bare=other.startswith("tgi_")', "bare=True"),
    ("sums.get(labels, 0.0) + sample.value", "sample.value"),
    ('if sample.name.endswith("_total"):', "if True:"),
)
CASES: Cases = {
    "request_record": (
        (
            keeps_no_query,
            bounds_what_a_client_names,
            adds_up_its_prompts,
            says_no_span_whose_moment_is_missing,
            keeps_numbers_of_what_was_asked,
            asks_an_embedding_for_no_numbers,
        ),
        RECORD,
    ),
    "log_lines": ((drops_what_finds_no_room, bounds_a_line, says_what_a_request_did), LINES),
    "scrape": ((renames_and_sums,), SCRAPE),
}
MODULES = {"request_record": request_record, "log_lines": log_lines, "scrape": scrape}


@checked(CASES)
def test_the_source_is_right(name: str, check: Any) -> None:
    check(MODULES[name])


@mistaken(CASES)
def test_a_mistake_is_noticed(name: str, right: str, wrong: str) -> None:
    must_die(MODULES[name], right, wrong, CASES[name][0])
