"""Keys, sizes and crowds: what is stopped before an endpoint sees it."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from octavo.server import limits
from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import Reply, call, get, post
from support.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
PATHS = ["/metrics", "/version", "/v1/models", "/v1/models/x", "/openapi.json", "/nothing", CHAT]


@pytest.fixture
def locked(engine: FakeEngine) -> FastAPI:
    return create_app(engine, ServerSettings(api_keys=("right", "other")))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [None, "Bearer wrong", "Basic right", "right", "Bearer ", "Bearer righ"])
def test_every_path_wants_the_key(locked: FastAPI, path: str, value: str | None) -> None:
    headers = {} if value is None else {"authorization": value}
    reply = get(locked, path, headers=headers)
    assert reply.status == 401
    assert reply.error["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["right", "other"])
def test_any_of_the_keys_opens(locked: FastAPI, key: str) -> None:
    assert get(locked, "/v1/models", headers={"authorization": f"Bearer {key}"}).status == 200
    assert post(locked, CHAT, BODY, headers={"Authorization": f"bearer {key}"}).status == 200


def test_health_is_open(locked: FastAPI) -> None:
    assert get(locked, "/health").status == 200


def test_without_configured_keys_any_is_accepted(app: FastAPI) -> None:
    assert get(app, "/v1/models").status == 200
    assert get(app, "/v1/models", headers={"authorization": "Bearer dummy"}).status == 200


def test_tenants_do_not_share_cached_prompts(locked: FastAPI, engine: FakeEngine) -> None:
    for key, salt in (("right", None), ("other", None), ("right", "s"), ("other", "s"), ("right", None)):
        post(locked, CHAT, BODY | {"cache_salt": salt}, headers={"authorization": f"Bearer {key}"})
    salts = [call.cache_salt for call in engine.calls]
    assert len(set(salts[:4])) == 4
    assert salts[4] == salts[0]
    assert all(salt is not None and "right" not in salt and "other" not in salt for salt in salts)


def test_without_keys_prompts_are_shared(app: FastAPI, engine: FakeEngine) -> None:
    post(app, CHAT, BODY, headers={"authorization": "Bearer dummy"})
    assert engine.calls[0].cache_salt is None


def small(engine: FakeEngine) -> FastAPI:
    return create_app(engine, ServerSettings(max_body_bytes=100))


@pytest.mark.parametrize("size", [101, 100_000])
def test_large_bodies_are_refused(engine: FakeEngine, size: int) -> None:
    reply = post(small(engine), CHAT, b"x" * size)
    assert reply.status == 413
    assert reply.error["code"] == "request_too_large"
    assert "100 bytes" in reply.error["message"]


def test_a_body_of_the_limit_is_read(engine: FakeEngine) -> None:
    assert post(small(engine), CHAT, b"x" * 100).status == 400  # no JSON, but no longer a matter of size


def test_large_bodies_without_a_length_are_refused(engine: FakeEngine) -> None:
    assert post(small(engine), CHAT, parts=[b"x" * 60] * 5).status == 413


def test_a_lying_length_does_not_help(engine: FakeEngine) -> None:
    assert post(small(engine), CHAT, b"x" * 500, headers={"content-length": "5"}).status == 413


def test_absurd_lengths_are_not_waited_for(engine: FakeEngine) -> None:
    length = str(limits.DRAIN_BYTES + 1)
    assert post(small(engine), CHAT, b"x", headers={"content-length": length}).status == 413


def test_bodies_in_pieces_are_joined(app: FastAPI) -> None:
    pieces = [b'{"messages": [{"role": "us', b'er", "content": "Hi"}]', b"}", b""]
    assert post(app, CHAT, parts=pieces).status == 200


def test_a_body_that_never_ends_is_given_up(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(body_timeout_s=0.01))
    state = app.state.octavo

    async def stalled() -> Reply:
        reply = Reply()

        async def receive() -> dict[str, object]:
            await asyncio.sleep(60)
            return {}

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                reply.status = int(str(message["status"]))

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        await app(scope, receive, send)  # type: ignore[arg-type]
        return reply

    assert asyncio.run(stalled()).status == 408
    assert state.in_flight == 0


def test_too_many_at_once_are_sent_away(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(max_concurrent_requests=2))

    async def crowd() -> list[Reply]:
        engine.hold = asyncio.Event()
        streams = [asyncio.ensure_future(call(app, "POST", CHAT, BODY | {"stream": True})) for _ in range(2)]
        while len(engine.calls) < 2:
            await asyncio.sleep(0)
        third = await call(app, "POST", CHAT, BODY)
        assert (await call(app, "GET", "/health")).status == 200
        engine.hold.set()
        first, second = await asyncio.gather(*streams)
        return [first, second, third, await call(app, "POST", CHAT, BODY)]

    first, second, third, later = asyncio.run(crowd())
    assert third.status == 429
    assert third.headers["retry-after"] == "1"
    assert third.error["code"] == "overloaded"
    assert [first.status, second.status, later.status] == [200, 200, 200]
    assert first.events()


def test_a_failed_request_gives_its_place_back(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(max_concurrent_requests=1))
    for body in (b"{", BODY, {"messages": 1}, BODY):
        post(app, CHAT, body)
    assert app.state.octavo.in_flight == 0
    assert post(app, CHAT, BODY).status == 200
