"""Names, pages and content types that a server on this machine refuses; proxies' paths."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from octavo.server.app import create_app
from octavo.server.edge import Edge, EdgeRules, closing
from octavo.server.state import ServerSettings
from support.asgi import Reply, call
from support.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
LOCAL = EdgeRules(frozenset({"box.lan"}))
ANYWHERE = EdgeRules()


def ask(
    rules: EdgeRules,
    headers: dict[str, str],
    method: str = "POST",
    path: str = CHAT,
    app: FastAPI | None = None,
) -> Reply:
    edge = Edge(app or create_app(FakeEngine()), rules)
    body: Any = BODY if method == "POST" else None

    async def over_http(scope: Any, receive: Any, send: Any) -> None:
        await edge({**scope, "http_version": "1.1"}, receive, send)

    return asyncio.run(call(over_http, method, path, body, headers=headers))


OURS = [
    "localhost", "localhost:8000", "LocalHost:1", "a.localhost", "localhost.", "127.0.0.1:8000", "127.9.9.9",
    "[::1]:8000",    "192.168.1.5:8000", "10.0.0.1", "box.lan", "BOX.lan:80",
]  # fmt: skip
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "x",
    "",
    "[",
    "a b",
    "lan",
]


@pytest.mark.parametrize("host", OURS)
def test_names_of_this_machine_pass(host: str) -> None:
    assert ask(LOCAL, {"host": host}).status == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_host_is_403(host: str, method: str) -> None:
    reply = ask(LOCAL, {"host": host}, method, CHAT if method == "POST" else "/v1/models")
    assert reply.status == 403
    assert reply.error["code"] == "host_not_allowed"


def test_any_host_passes_where_anybody_may_reach_the_server_or_it_is_allowed() -> None:
    for rules in (ANYWHERE, EdgeRules(frozenset({"*"}))):
        assert ask(rules, {"host": "evil.example"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "https://192.168.1.5"},
        {"origin": "file://"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_other_sites_are_403(headers: dict[str, str], method: str) -> None:
    reply = ask(
        LOCAL, {"host": "localhost:8000", **headers}, method, CHAT if method == "POST" else "/v1/models"
    )
    assert reply.status == 403
    assert reply.error["code"] == "origin_not_allowed"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:3000", "sec-fetch-site": "cross-site"},
        {"origin": "http://[::1]:3000"},
        {"origin": "http://box.lan:8000", "host": "box.lan:8000"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
)
def test_pages_of_this_machine_pass(headers: dict[str, str]) -> None:
    assert ask(LOCAL, {"host": "localhost:8000", **headers}).status == 200


@pytest.mark.parametrize("path", ["/", "/health", "/live", "/ready", "/ping", "/health/"])
def test_probes_need_no_name(path: str) -> None:
    headers = {"host": "kubernetes.default", "sec-fetch-site": "cross-site"}
    assert ask(LOCAL, headers, "GET", path).status == 200
    assert ask(LOCAL, headers, "HEAD", path).status == 200
    assert ask(LOCAL, headers, "POST", path).status == 403


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "Multipart/Form-Data; b=1",
    ],
)
@pytest.mark.parametrize("rules", [LOCAL, ANYWHERE])
def test_what_any_page_can_post_is_415(rules: EdgeRules, kind: str) -> None:
    reply = ask(rules, {"host": "localhost", "content-type": kind})
    assert reply.status == 415
    assert "application/json" in reply.error["message"]


@pytest.mark.parametrize(
    ("coding", "status"),
    [("gzip", 415), ("x-GZIP", 415), ("br", 415), ("zstd", 415), ("deflate, gzip", 415), ("identity", 200),
     ("", 200), ("utf-8", 200)],
)  # fmt: skip
def test_a_packed_body_is_415_and_says_why(coding: str, status: int) -> None:
    reply = ask(ANYWHERE, {"content-encoding": coding})
    assert reply.status == status
    assert status == 200 or "Content-Encoding" in reply.error["message"]


def test_what_a_page_posts_without_a_type_is_415() -> None:
    for origin in ("http://localhost:3000", "https://evil.example"):
        assert ask(ANYWHERE, {"content-type": "", "origin": origin}).status == 415


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json", ""])
def test_other_content_types_pass(kind: str) -> None:
    assert ask(LOCAL, {"host": "localhost", "content-type": kind}).status == 200


def test_refusals_come_before_the_key_and_in_the_words_of_the_path() -> None:
    app = create_app(FakeEngine(), ServerSettings(api_keys=("k",)))
    reply = ask(LOCAL, {"host": "evil.example"}, path="/v1/messages", app=app)
    assert reply.status == 403
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "permission_error"
    metrics = app.state.octavo.metrics.render()
    assert b'octavo_http_requests_total{method="other",path="other",status="403"} 1.0' in metrics


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/llm/version", 200),
        ("/version", 200),
        ("/llm", 200),
        ("/llm/", 200),
        ("/llmversion", 404),
        ("/llm/llm/version", 404),
    ],
)
def test_a_path_that_a_proxy_leaves_in_is_taken_away(path: str, status: int) -> None:
    assert ask(EdgeRules(root_path="/llm"), {}, "GET", path).status == status


def test_keys_are_asked_for_below_a_root_path_too() -> None:
    app = create_app(FakeEngine(), ServerSettings(api_keys=("k",)))
    rules = EdgeRules(root_path="/llm")
    assert ask(rules, {}, "GET", "/llm/version", app).status == 401
    assert ask(rules, {}, "GET", "/llm/health", app).status == 200


def test_a_draining_server_keeps_no_connection() -> None:
    app = create_app(FakeEngine())
    assert "connection" not in ask(ANYWHERE, {}, "GET", "/health", app).headers
    app.state.octavo.draining = True
    for method, path, status in (("GET", "/health", 503), ("GET", "/version", 200), ("POST", CHAT, 503)):
        reply = ask(ANYWHERE, {}, method, path, app)
        assert (reply.status, reply.headers["connection"]) == (status, "close")


def test_an_answer_that_began_before_the_drain_is_the_last_of_its_connection() -> None:
    app = create_app(FakeEngine())
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    late = closing(send, app.state.octavo)
    app.state.octavo.draining = True
    asyncio.run(late({"type": "http.response.start", "status": 200, "headers": []}))
    assert (b"connection", b"close") in sent[0]["headers"]
