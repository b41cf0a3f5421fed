"""Log lines: what they say, what they never say, and that nobody waits for them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.server import log_limit
from octavo.server.app import create_app
from octavo.server.log_lines import AccessLog, JsonFormatter, LineWriter, ServerLogs
from octavo.server.request_record import CLIENT_LEFT
from octavo.server.run import Network
from octavo.server.state import ServerSettings
from support.asgi import call
from support.fake_engine import FakeEngine
from support.live import CHAT, Running, run, running, until

SECRET = "s3cr3t"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


@contextmanager
def files(folder: Path, as_json: bool = True) -> Iterator[tuple[Network, Path, Path]]:
    """A network whose log lines go to two files."""
    out, err = folder / "out", folder / "err"
    with out.open("wb") as one, err.open("wb") as two:
        logs = ServerLogs(True, as_json, (one.fileno(), two.fileno()))
        with logs:
            yield Network(logs=logs, readers=(AccessLog(),)), out, err


def parsed(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


HEADERS = {
    "authorization": f"Bearer {SECRET}-key",
    "x-api-key": f"{SECRET}-key",
    "cookie": f"{SECRET}-cookie",
    "user-agent": f"{SECRET}-agent",
    "x-request-id": "named/7",
    "traceparent": f"{SECRET}-parent",
}
FIELDS: dict[str, Any] = {
    "user": f"{SECRET}-user",
    "stop": [f"{SECRET}-stop"],
    "cache_salt": f"{SECRET}-salt",
}
MESSAGES = [
    {"role": "system", "content": f"{SECRET} system"},
    {"role": "user", "content": f"{SECRET} prompt"},
]
TOOL = {"type": "function", "function": {"name": f"{SECRET}_tool", "parameters": {"type": "object"}}}
ASKED: list[tuple[str, Any]] = [
    (CHAT, {"messages": MESSAGES, **FIELDS}),
    (CHAT, {"messages": MESSAGES, "stream": True, "tools": [TOOL], **FIELDS}),
    (CHAT, {"messages": MESSAGES, "structured_outputs": {"regex": f"({SECRET}"}}),
    (CHAT, {"messages": MESSAGES, "n": 2, "logprobs": True}),
    (CHAT, {"messages": [{"role": f"{SECRET}-role", "content": 3}]}),
    (CHAT, {"messages": MESSAGES, "model": f"{SECRET}-model"}),
    (CHAT, {"messages": MESSAGES, f"{SECRET}-field": 1}),
    (CHAT, f'{{"messages": "{SECRET}'.encode()),
    ("/v1/completions", {"prompt": [f"{SECRET} one", f"{SECRET} two"], "echo": True}),
    ("/v1/completions", {"prompt": f"{SECRET} one", "suffix": SECRET}),
    ("/v1/responses", {"input": f"{SECRET} input", "metadata": {"a": SECRET}, "instructions": SECRET}),
    ("/v1/messages", {"messages": MESSAGES[1:], "system": f"{SECRET} system", "max_tokens": 9}),
    ("/v1/embeddings", {"input": [f"{SECRET} a", f"{SECRET} b"]}),
    ("/tokenize", {"prompt": f"{SECRET} text"}),
    ("/detokenize", {"tokens": list(SECRET.encode())}),
    ("/v1/nowhere", {"prompt": SECRET}),
]


def test_no_line_holds_what_was_said_nor_a_key(tmp_path: Path) -> None:
    """Secrets in every field, in headers, the query and raw bytes; from good, bad and failing requests."""

    async def ask_all(server: Running, query: str, headers: dict[str, str]) -> None:
        for path, body in ASKED:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent = {"content-type": "application/json", **headers}
            await server.client.post(path + query, content=data, headers=sent)

    async def test() -> None:
        engine = FakeEngine(reply=f"{SECRET} answer", max_model_len=4096)
        app = create_app(None, ServerSettings(api_keys=(f"{SECRET}-key",)))
        with files(tmp_path) as (network, out, err):
            async with running(engine, network=network, app=app) as server:
                await ask_all(server, f"?key={SECRET}", HEADERS)
                await ask_all(server, "", {"authorization": f"Bearer {SECRET}-wrong"})
                engine.refuse = RuntimeError("the engine's own words")
                await ask_all(server, "", HEADERS)
                await server.ask(f"{SECRET}\r\n\r\n".encode())
                await server.ask(f"{SECRET} / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        lines, others = parsed(out), parsed(err)
        assert SECRET not in out.read_text("utf-8") + err.read_text("utf-8")
        statuses = [line["status"] for line in lines]
        assert len(statuses) == 2 * len(ASKED) + log_limit.LINES, "refused keys are bounded"
        assert statuses.count(200) >= 10, "answers must have been written, too"
        assert {200, 400, 401, 404, 500} <= set(statuses)
        assert any("the engine's own words" in line.get("exception", "") for line in others)

    run(test)


def test_what_a_line_says(tmp_path: Path) -> None:
    async def test() -> None:
        with files(tmp_path) as (network, out, _):
            async with running(FakeEngine(), network=network) as server:
                body = {**BODY, "stream": True, "max_tokens": 3}
                await server.client.post(CHAT, json=body, headers={"x-request-id": "mine"})
                await server.client.get("/health?a=b")
        health, chat = sorted(parsed(out), key=lambda line: str(line["path"]))  # they may end in any order
        assert chat.pop("response_id").startswith("chatcmpl-")
        for name in ("duration_s", "queue_s", "time_to_first_token_s", "prefill_s", "decode_s"):
            assert chat.pop(name) >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", chat.pop("time"))
        client = chat.pop("client")
        assert client.startswith("127.0.0.1:")
        assert chat == {
            "level": "info",
            "logger": "octavo.access",
            "message": f'{client} - "POST {CHAT} HTTP/1.1" 200',
            "request_id": "mine",
            "method": "POST",
            "path": CHAT,
            "route": CHAT,
            "status": 200,
            "model": "fake/model",
            "prompt_tokens": len("user:Hi\nassistant:"),
            "cached_tokens": len("user:Hi\nassistant:") // 2,
            "completion_tokens": 3,
            "finish_reasons": ["length"],
        }
        assert (health["path"], health["status"]) == ("/health", 200)
        assert not {"request_id", "model", "prompt_tokens", "cut"} & set(health)

    run(test)


def test_many_prompts_count_together(tmp_path: Path) -> None:
    async def test() -> None:
        with files(tmp_path) as (network, out, _):
            async with running(FakeEngine(), network=network) as server:
                body = {"prompt": ["ab", "abc"], "n": 2, "max_tokens": 2}
                assert (await server.client.post("/v1/completions", json=body)).status_code == 200
        (line,) = parsed(out)
        assert (line["prompt_tokens"], line["completion_tokens"], line["finish_reasons"]) == (
            5,
            8,
            ["length"],
        )

    run(test)


@pytest.mark.parametrize(("begun", "status"), [(False, CLIENT_LEFT), (True, 200)])
def test_a_client_that_left(tmp_path: Path, begun: bool, status: int) -> None:
    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event()) if begun else FakeEngine(gate=asyncio.Event())
        with files(tmp_path) as (network, out, _):
            async with running(engine, network=network) as server:
                data = json.dumps(BODY | {"stream": True}).encode()
                head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                reader, writer = await server.connect(
                    head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data
                )
                if begun:
                    await reader.readline()
                else:
                    await until(lambda: server.app.state.octavo.in_flight)
                writer.transport.abort()
                await until(lambda: not server.app.state.octavo.in_flight)
        (line,) = parsed(out)
        assert (line["status"], line["cut"]) == (status, True)
        assert "finish_reasons" not in line

    run(test)


def test_lines_of_text_are_as_uvicorn_writes_them(tmp_path: Path) -> None:
    async def test() -> None:
        with files(tmp_path, as_json=False) as (network, out, err):
            async with running(FakeEngine(), network=network) as server:
                await server.client.get("/health?key=secret")
        line = out.read_text()
        assert re.fullmatch(r'INFO:     127\.0\.0\.1:\d+ - "GET /health HTTP/1\.1" 200\n', line)
        assert err.read_text() == ""

    run(test)


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """(reading end, writing end) of a pipe that takes nothing more."""
    reader, writer = os.pipe()
    try:
        size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writer, b"\n" * size)
        yield reader, writer
    finally:
        os.close(reader)  # ends a write that waits
        os.close(writer)


def test_a_full_pipe_holds_nobody_and_is_counted() -> None:
    async def test() -> None:
        with full_pipe() as (_, writer):
            logs = ServerLogs(True, True, (writer, writer))
            logs._out = LineWriter(writer, max_waiting=2000)
            with logs:
                network = Network(logs=logs, readers=(AccessLog(),))
                async with running(FakeEngine(), network=network) as server:
                    for _ in range(30):
                        assert (await server.client.get("/health")).status_code == 200
                    text = (await server.client.get("/metrics")).text
                assert logs.dropped > 20
                told = re.search(r"^octavo_log_lines_dropped_total (\S+)$", text, re.MULTILINE)
                assert told is not None
                assert float(told[1]) > 20
                logs._out._closing = True  # nobody will read: its end is not waited for

    run(test)


def test_what_waits_is_bounded_and_written_in_order() -> None:
    with full_pipe() as (reader, writer):
        lines = LineWriter(writer, max_waiting=100)
        for i in range(50):
            lines.put(f"line {i:03d}\n")
        assert lines.dropped == 50 - 11
        os.read(reader, 4096)
        lines.close(timeout_s=60)
        assert os.read(reader, 4096).decode() == "".join(f"line {i:03d}\n" for i in range(11))
        lines.put("too late\n")
        assert lines.dropped == 50 - 10


def test_a_reader_that_left_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = LineWriter(writer)
    for _ in range(3):
        lines.put("a\n")
    lines.close(timeout_s=60)
    os.close(writer)
    assert lines.dropped == 3


def test_a_line_is_bounded_and_one_line() -> None:
    record = logging.LogRecord("octavo.server", logging.ERROR, "", 0, "%s", ("x" * 10**6,), None)
    try:
        raise ValueError("a\nb" * 10**5)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert len(line) < 10_000
    assert json.loads(line)["level"] == "error"


def test_the_process_logs_as_before_when_a_server_has_ended(tmp_path: Path) -> None:
    root, access = logging.getLogger(), logging.getLogger("octavo.access")
    before = (list(root.handlers), list(access.handlers))
    with files(tmp_path):
        assert len(root.handlers) == len(before[0]) + 1
    assert (root.handlers, access.handlers) == before


def test_without_readers_nothing_is_recorded() -> None:
    async def test() -> None:
        app = create_app(None)
        metrics, queue = app.state.octavo.metrics, app.state.octavo.queue
        async with running(FakeEngine(), app=app) as server:
            await server.client.get("/health")
            assert (app.state.octavo.metrics, app.state.octavo.queue) == (metrics, queue)

    run(test)


def test_calls_without_a_record_are_counted_too(tmp_path: Path) -> None:
    """A batch file asks the app, not the network."""

    async def test() -> None:
        with files(tmp_path) as (network, out, _):
            async with running(FakeEngine(), network=network) as server:
                assert (await call(server.app, "POST", CHAT, BODY)).status == 200
                text = (await server.client.get("/metrics")).text
        assert (
            'octavo_request_success_total{engine="0",finished_reason="stop",model_name="fake/model"} 1.0'
            in text
        )
        assert [line["path"] for line in parsed(out)] == ["/metrics"]

    run(test)
