"""Pages of other origins: named ones come in, past the checks on loopback too; others have no CORS."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.server.app import create_app
from octavo.server.cors import CorsRules
from octavo.server.edge import Edge, EdgeRules
from octavo.server.state import ServerSettings
from support.asgi import Reply, call
from support.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
PAGE = "http://localhost.test:3000"
ASKED = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def rules(*origins: str, credentials: bool = False, hosts: frozenset[str] | None = frozenset()) -> EdgeRules:
    return EdgeRules(hosts, cors=CorsRules.of(origins, (), (), credentials))


def ask(given: EdgeRules, method: str, headers: dict[str, str], path: str = CHAT, key: bool = False) -> Reply:
    edge = Edge(create_app(FakeEngine(), ServerSettings(api_keys=("k",) if key else ())), given)

    async def over_http(scope: Any, receive: Any, send: Any) -> None:
        await edge({**scope, "http_version": "1.1"}, receive, send)

    body = HI if method == "POST" else None
    kind = {} if body else {"content-type": ""}  # browsers send none where there is no body
    headers = {"host": "127.0.0.1:8000", **kind, **headers}
    return asyncio.run(call(over_http, method, path, body, headers=headers))


def granted(reply: Reply) -> bool:
    return any(name.startswith("access-control-") for name in reply.headers)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/nothing"])
def test_a_preflight_of_an_allowed_origin_needs_no_key(path: str) -> None:
    reply = ask(rules(PAGE), "OPTIONS", {"origin": PAGE, **ASKED}, path, key=True)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("given", "headers", "status"),
    [
        (rules(), {"origin": PAGE, **ASKED}, 403),
        (rules(PAGE), {"origin": "https://evil.example", **ASKED}, 403),
        (rules(PAGE), {"origin": f"{PAGE}0", **ASKED}, 403),
        (rules(PAGE), {"origin": "null", **ASKED}, 403),
        (rules(PAGE, hosts=None), {"origin": "https://evil.example", **ASKED}, 401),
        (rules(PAGE, hosts=None), ASKED, 401),
    ],
)
def test_no_other_preflight_is_answered(given: EdgeRules, headers: dict[str, str], status: int) -> None:
    reply = ask(given, "OPTIONS", headers, key=True)
    assert (reply.status, granted(reply)) == (status, False)


def test_options_that_are_no_preflight_need_the_key_and_the_host_a_name_of_ours() -> None:
    assert ask(rules(PAGE), "OPTIONS", {"origin": PAGE}, key=True).status == 401
    reply = ask(rules(PAGE), "OPTIONS", {"origin": PAGE, **ASKED, "host": "evil.example"}, key=True)
    assert reply.status == 403


def test_answers_and_errors_can_be_read_by_the_page() -> None:
    for key, status in ((False, 200), (True, 401)):
        reply = ask(rules(PAGE), "POST", {"origin": PAGE, "sec-fetch-site": "cross-site"}, key=key)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, PAGE)
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in reply.headers


def test_programs_are_told_nothing_of_it() -> None:
    assert not granted(ask(rules(PAGE), "POST", {}))
    assert not granted(ask(EdgeRules(), "POST", {"origin": PAGE}))


def test_any_origin_and_credentials() -> None:
    assert ask(rules("*"), "POST", {"origin": PAGE}).headers["access-control-allow-origin"] == "*"
    reply = ask(rules(PAGE, credentials=True), "POST", {"origin": PAGE})
    assert reply.headers["access-control-allow-credentials"] == "true"
    assert reply.headers["access-control-allow-origin"] == PAGE


def test_methods_and_headers_by_name() -> None:
    named = EdgeRules(None, cors=CorsRules.of([PAGE], ["POST"], ["content-type"], False))
    reply = ask(named, "OPTIONS", {"origin": PAGE, **ASKED})
    assert reply.headers["access-control-allow-methods"] == "POST"
    assert reply.headers["access-control-allow-headers"] == "content-type"


@pytest.mark.parametrize("asked", ["", "a\tb", "x" * 3000, "a(b)"])
def test_header_names_that_are_none_are_not_said_back(asked: str) -> None:
    told = {**ASKED, "access-control-request-headers": asked}
    assert "access-control-allow-headers" not in ask(rules(PAGE), "OPTIONS", {"origin": PAGE, **told}).headers


@pytest.mark.parametrize(
    "origin",
    ["localhost:3000", "http://a/", "http://a/b", "http://a:x", "http://", "", "http://u@a", "http://["],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidRequestError, match="--allowed-origins takes origins such as"):
        CorsRules.of([origin], (), (), False)


@pytest.mark.parametrize("origins", [["*"], []])
def test_credentials_need_origins_by_name(origins: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="by name"):
        CorsRules.of(origins, (), (), True)


@pytest.mark.parametrize("origin", ["https://a.example", "http://[::1]:3000", "HTTP://A:80", "*", "null"])
def test_what_browsers_send_is_taken(origin: str) -> None:
    assert CorsRules.of([origin], (), (), False).origins == {origin.lower()}
