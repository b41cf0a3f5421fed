"""Keys, sizes and crowds: what is stopped before an endpoint sees it."""

from __future__ import annotations

import asyncio
import json
import re

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
    length = str(limits.MAX_DROPPED_BYTES + 1)
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


def http_labels(app: FastAPI) -> set[tuple[str, ...]]:
    """Of each counted response, the method, path and status."""
    text = app.state.octavo.metrics.render().decode()
    return set(
        re.findall(r'octavo_http_requests_total{method="([^"]*)",path="([^"]*)",status="(\d+)"}', text)
    )


@pytest.mark.parametrize("key", [None, "right"])
def test_what_clients_invent_is_no_label(locked: FastAPI, key: str | None) -> None:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}

    async def many() -> None:
        for i in range(200):
            for path in ("/health", f"/nothing/{i}", f"/v1/models/{i}", CHAT):
                await call(locked, f"M{i}" + "A" * 15_000, path, headers=headers)

    size = len(locked.state.octavo.metrics.render())
    asyncio.run(many())
    assert {method for method, _, _ in http_labels(locked)} == {"other"}
    assert len(http_labels(locked)) <= 5
    assert len(locked.state.octavo.metrics.render()) < size + 1000


def test_who_has_no_key_is_counted_by_status_alone(locked: FastAPI) -> None:
    for method in limits.METHODS:
        for path in PATHS:
            asyncio.run(call(locked, method, path))
    assert http_labels(locked) == {("other", "other", "401")}


@pytest.mark.parametrize("path", ["/health", "/", CHAT, "/nothing", "/v1/messages"])
def test_without_a_key_no_body_is_read_and_no_place_taken(locked: FastAPI, path: str) -> None:
    state, most = locked.state.octavo, []

    async def endless() -> None:
        statuses = []

        async def receive() -> dict[str, object]:
            raise AssertionError("nobody who has no key is listened to")

        async def send(message: dict[str, object]) -> None:
            most.append((state.in_flight, state.buffered))
            statuses.append(message.get("status"))

        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-length", b"100000")]}
        await locked(scope, receive, send)  # type: ignore[arg-type]
        assert statuses[0] == 401

    asyncio.run(endless())
    assert set(most) == {(0, 0)}


class SlowBody:
    """A request whose body comes when it is told to."""

    def __init__(self, app: FastAPI, length: int) -> None:
        self.go, self.reply = asyncio.Event(), Reply()
        self.parts = iter([b"[" * length])
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
        self.task = asyncio.ensure_future(app(scope, self.receive, self.send))  # type: ignore[arg-type]

    async def receive(self) -> dict[str, object]:
        part = next(self.parts, None)
        if part is None:
            await self.go.wait()
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def send(self, message: dict[str, object]) -> None:
        self.reply.status = self.reply.status or int(str(message["status"]))


def test_who_sends_slowly_holds_no_place(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(max_concurrent_requests=1))

    async def crowd() -> None:
        slow = [SlowBody(app, 10) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert app.state.octavo.in_flight == 0
        assert (await call(app, "POST", CHAT, BODY)).status == 200
        for each in slow:
            each.go.set()
            await each.task
        assert {each.reply.status for each in slow} == {400}

    asyncio.run(crowd())


def test_bodies_are_bounded_in_bytes_in_all(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(max_buffered_bytes=1000))
    state = app.state.octavo

    async def crowd() -> None:
        held = [SlowBody(app, 300) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert state.buffered == 900
        refused = await call(app, "POST", CHAT, b" " * 300)
        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        assert (await call(app, "POST", CHAT, BODY)).status == 200
        assert state.buffered == 900
        held[0].go.set()
        await held[0].task
        assert state.buffered == 600
        for each in held[1:]:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in held), return_exceptions=True)
        assert (state.buffered, state.in_flight) == (0, 0)

    asyncio.run(crowd())


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_counts_until_the_answer_begins(engine: FakeEngine, stream: bool) -> None:
    app = create_app(engine)
    state = app.state.octavo

    async def one() -> None:
        engine.hold = asyncio.Event()
        asked = asyncio.ensure_future(call(app, "POST", CHAT, BODY | {"stream": stream}))
        while not engine.calls:
            assert state.buffered > 0 or not state.in_flight
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert (state.buffered == 0) is stream
        engine.hold.set()
        await asked
        assert state.buffered == 0

    asyncio.run(one())


def test_a_body_may_be_as_large_as_the_limit_says(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is read of one that is too large."""
    monkeypatch.setattr(limits, "MAX_DROPPED_BYTES", 100)
    body = json.dumps({"messages": [{"role": "user", "content": "a"}]}).encode() + b" " * 500
    parts = [body[i : i + 50] for i in range(0, len(body), 50)]
    assert post(create_app(engine, ServerSettings(max_body_bytes=1000)), CHAT, parts=parts).status == 200
