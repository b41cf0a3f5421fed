"""While the engine's queue is full a request is refused unread, after all that strangers are asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.server import full
from octavo.server.app import create_app
from octavo.server.edge import Edge, EdgeRules
from octavo.server.state import ServerSettings
from support.asgi import Reply, call
from support.fake_engine import FakeEngine

MOST = 8
CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
KEY = {"authorization": "Bearer a"}


def ask(
    path: str,
    body: Any = None,
    *,
    waiting: int = MOST,
    in_flight: int = MOST,
    headers: dict[str, str] | None = None,
    method: str = "POST",
    draining: bool = False,
    **settings: Any,
) -> tuple[Reply, Any]:
    """The answer of a server whose engine has so many requests waiting, and the server's state."""
    engine = FakeEngine(max_waiting=MOST, max_sequences=2 * MOST)
    engine.counts.waiting = waiting
    app = create_app(engine, ServerSettings(**settings))
    state = app.state.octavo
    state.in_flight, state.draining = in_flight, draining
    edge = Edge(app, EdgeRules(frozenset()))

    async def over_http(scope: Any, receive: Any, send: Any) -> None:
        await edge({**scope, "http_version": "1.1"}, receive, send)

    body = b"{ this is no JSON" if body is None and method == "POST" else body
    return asyncio.run(call(over_http, method, path, body, headers=headers)), state


@pytest.mark.parametrize("path", [TEXT, CHAT, "/v1/responses", MESSAGES])
def test_what_would_wait_is_refused_unread(path: str) -> None:
    reply, state = ask(path)
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) >= 1
    assert "waiting already" in reply.json()["error"]["message"]
    assert state.rejections["overloaded"] == 1


@pytest.mark.parametrize(
    ("path", "changes", "status"),
    [
        (TEXT, {"waiting": MOST - 1}, 400),  # there is room, so the body is read
        (TEXT, {"in_flight": MOST - 1}, 400),  # the engine is asked later, and exactly
        ("/tokenize", {}, 400),  # which the engine's queue has nothing to do with
        ("/v1/models", {"method": "GET"}, 200),
        (TEXT, {"draining": True}, 503),
        (TEXT, {"headers": {"host": "evil.example"}}, 403),
        (TEXT, {"api_keys": ("a",)}, 401),
        (TEXT, {"api_keys": ("a",), "headers": KEY}, 429),
    ],
)
def test_what_is_asked_before_and_what_is_let_through(
    path: str, changes: dict[str, Any], status: int
) -> None:
    assert ask(path, **changes)[0].status == status


def test_the_refusal_is_in_the_words_of_the_path() -> None:
    assert ask(MESSAGES)[0].json()["type"] == "error"
    assert ask(CHAT)[0].json()["error"]["code"] == "overloaded"


def test_a_short_body_is_read_to_its_end_and_a_long_one_left() -> None:
    """A connection that is closed with unread bytes is reset, and the client never sees the answer."""
    taken = []

    async def receive() -> dict[str, Any]:
        taken.append(1)
        return {"type": "http.request", "body": b"x", "more_body": len(taken) < 3}

    for length, pieces in ((3, 3), (full.SHORT_BODY + 1, 0)):
        taken.clear()
        scope = {"headers": [(b"content-length", str(length).encode())]}
        asyncio.run(full._drop_body(scope, receive, 5.0))
        assert len(taken) == pieces
