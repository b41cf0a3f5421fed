"""What /metrics says of the door, the loop and the process, and request ids that clients bring."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from fastapi import FastAPI

import octavo
from octavo.server.app import create_app
from octavo.server.connections import ConnectionLimits
from octavo.server.edge import Edge, EdgeRules
from octavo.server.run import Network
from octavo.server.state import ServerSettings
from support.asgi import Reply, call, post
from support.fake_engine import FakeEngine
from support.live import CHAT, run, running, until

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


def value(app: FastAPI, name: str) -> float:
    lines = app.state.octavo.metrics.render().decode().splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " ")), 0.0)


@pytest.mark.parametrize(
    ("reason", "settings", "body"),
    [
        ("invalid_api_key", {"api_keys": ("k",)}, BODY),
        ("request_too_large", {"max_body_bytes": 1}, BODY),
        ("overloaded", {"max_concurrent_requests": 0}, BODY),
        ("overloaded", {"max_buffered_bytes": 1}, BODY),
        ("service_unavailable", None, BODY),
    ],
)
def test_rejections_are_counted_by_reason(
    reason: str, settings: dict[str, object] | None, body: object
) -> None:
    app = create_app(None if settings is None else FakeEngine(), ServerSettings(**settings or {}))  # type: ignore[arg-type]
    for _ in range(3):
        assert post(app, CHAT, body).status >= 400
    assert value(app, f'octavo_http_rejections_total{{reason="{reason}"}}') == 3


def test_what_an_endpoint_refuses_is_no_rejection(app: FastAPI) -> None:
    assert post(app, CHAT, {"messages": 3}).status == 400
    assert b"octavo_http_rejections_total{" not in app.state.octavo.metrics.render()


def test_connections_that_are_given_up_are_counted() -> None:
    async def test() -> None:
        app = create_app(None)
        limits = ConnectionLimits(header_timeout_s=0.2)
        async with running(FakeEngine(), network=Network(limits), app=app) as server:
            await asyncio.gather(*(server.ask(b"") for _ in range(3)))
            await server.ask(b"\0\r\n\r\n")
            name = 'octavo_connections_closed_total{{reason="{}"}}'.format
            assert value(app, name("header_timeout")) == 3
            assert value(app, name("invalid_http")) == 1

    run(test)


def test_a_loop_that_stands_still_is_seen() -> None:
    async def test() -> None:
        app = create_app(None)
        async with running(FakeEngine(), app=app):
            await until(lambda: value(app, "octavo_event_loop_lag_seconds_count") > 2)
            time.sleep(0.8)
            await until(lambda: value(app, "octavo_event_loop_lag_seconds_sum") > 0.5)

    run(test)


def test_process_and_build(app: FastAPI, engine: FakeEngine) -> None:
    assert value(app, "process_resident_memory_bytes") > 1 << 20
    assert value(app, "process_cpu_seconds_total") > 0
    assert value(app, "process_open_fds") > 0
    text = app.state.octavo.metrics.render().decode()
    assert re.search(rf'octavo_build_info\{{.*version="{re.escape(octavo.__version__)}".*\}} 1', text)
    assert "vllm:process" not in text
    assert "vllm:build" not in text
    assert value(app, "octavo_healthy") == 1
    engine.healthy = False
    assert value(app, "octavo_healthy") == 0


def ask(headers: dict[str, str]) -> Reply:
    edge = Edge(create_app(FakeEngine()), EdgeRules())

    async def over_http(scope: dict[str, object], receive: object, send: object) -> None:
        await edge({**scope, "http_version": "1.1"}, receive, send)  # type: ignore[arg-type]

    return asyncio.run(call(over_http, "POST", CHAT, BODY, headers=headers))


def test_a_request_id_is_taken_over() -> None:
    assert ask({"x-request-id": "0f3a-7/b=:+."}).headers["x-request-id"] == "0f3a-7/b=:+."
    own = ask({})
    assert own.headers["x-request-id"] == own.json()["id"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b', "a\tb", "é"])
def test_what_is_no_id_is_not(given: str) -> None:
    reply = ask({"x-request-id": given})
    assert reply.headers["x-request-id"] == reply.json()["id"]
