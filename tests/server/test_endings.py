"""Every way a request can end: errors before and inside a stream, clients that leave, engines that die."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.errors import (
    NO_TOKEN_ALLOWED,
    CapacityError,
    EngineDeadError,
    EngineEndedError,
    InvalidRequestError,
    OverloadedError,
    RequestFailedError,
)
from octavo.server.app import create_app
from octavo.server.many_prompts import merge
from support.asgi import Reply, call, post
from support.fake_engine import FakeEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": "secret words"}]}),
    (TEXT, {"prompt": "secret words"}),
    (TEXT, {"prompt": ["secret words", "b", "c"]}),
]
both = pytest.mark.parametrize("stream", [False, True])
everywhere = pytest.mark.parametrize(("path", "body"), BODIES)


@both
@everywhere
@pytest.mark.parametrize("after", [0, 2])
def test_an_engine_that_has_ended_says_so(
    path: str, body: dict[str, Any], stream: bool, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In words that were made for clients, so no line in the log has to tell what was meant."""
    app = create_app(FakeEngine(fail_after=(after, EngineEndedError("the engine was stopped"))))
    reply = post(app, path, body | {"stream": stream})
    assert "the engine was stopped" in reply.body.decode()
    assert "engine_dead" in reply.body.decode()
    assert "internal error" not in caplog.text + reply.body.decode()


@both
@everywhere
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("min_p is odd", "min_p"), 400, None),
        (OverloadedError("the queue is full", 2.5), 429, "overloaded"),
        (EngineDeadError("the engine has stopped"), 503, "engine_dead"),
        (EngineEndedError("the engine was stopped"), 503, "engine_dead"),
        (CapacityError("too large"), 400, "capacity"),
        (RequestFailedError(f"{NO_TOKEN_ALLOWED}: nothing is left"), 400, "no_token_allowed"),
        (RequestFailedError("the model's logits hold NaN"), 500, "generation_failed"),
        (RuntimeError("a secret of ours"), 500, "internal_error"),
    ],
)
def test_errors_before_the_first_token_have_a_status(
    path: str, body: dict[str, Any], stream: bool, error: Exception, status: int, code: str | None
) -> None:
    app = create_app(FakeEngine(refuse=error))
    reply = post(app, path, body | {"stream": stream})
    assert reply.status == status
    assert reply.error["code"] == code
    assert "secret" not in reply.body.decode()
    if status == 429:
        assert reply.headers["retry-after"] == "3"
    assert app.state.octavo.in_flight == 0


def test_the_prompt_is_called_messages_in_chat() -> None:
    app = create_app(FakeEngine(refuse=InvalidRequestError("the prompt is odd", "prompt")))
    assert post(app, CHAT, BODIES[0][1]).error["param"] == "messages"


@everywhere
def test_errors_in_a_stream_are_its_last_event(path: str, body: dict[str, Any]) -> None:
    engine = FakeEngine(fail_after=(2, RuntimeError("a secret of ours")))
    reply = post(create_app(engine), path, body | {"stream": True})
    *events, last = reply.events()
    assert reply.status == 200
    assert events
    assert all("choices" in event for event in events)
    assert last["error"]["type"] == "server_error"
    assert "secret" not in last["error"]["message"]
    assert sorted(map(str, engine.aborted)) == sorted(str(c.request_id) for c in engine.calls)


@both
@pytest.mark.parametrize(
    ("engine", "status", "code"),
    [
        ({"finish_reason": "abort"}, 503, "aborted"),
        ({"fail_after": (1, RequestFailedError("its logits are NaN"))}, 500, "generation_failed"),
    ],
)
def test_an_answer_the_engine_gave_up_is_no_answer(
    engine: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    reply = post(create_app(FakeEngine(**engine)), TEXT, {"prompt": "a", "stream": stream})
    if stream:
        last = reply.events()[-1]
        assert last["error"]["code"] == code
    else:
        assert reply.status == status


def test_internal_errors_are_logged_without_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(FakeEngine(refuse=RuntimeError("broken")))
    with caplog.at_level(logging.DEBUG):
        reply = post(app, CHAT, BODIES[0][1])
    reference = reply.error["message"].split("reference ")[1].rstrip(")")
    assert reference in caplog.text
    assert "secret words" not in caplog.text


def test_nothing_is_logged_of_a_good_request(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for path, body in BODIES:
            post(app, path, body)
            post(app, path, body | {"temperature": "secret words"})
    assert "secret" not in caplog.text


@both
@everywhere
def test_a_client_that_leaves_aborts_its_requests(path: str, body: dict[str, Any], stream: bool) -> None:
    engine = FakeEngine()
    app = create_app(engine)

    async def leave() -> Reply:
        engine.hold = asyncio.Event()  # the engine would never end by itself
        return await call(app, "POST", path, body | {"stream": stream}, leave_after=1 if stream else 0)

    reply = asyncio.run(leave())
    assert not reply.complete
    assert (reply.status == 200) is stream
    assert sorted(map(str, engine.aborted)) == sorted(str(c.request_id) for c in engine.calls)
    assert app.state.octavo.in_flight == 0


def test_others_go_on_when_one_leaves() -> None:
    engine = FakeEngine()
    app = create_app(engine)

    async def two() -> Reply:
        engine.hold = asyncio.Event()
        stays = asyncio.ensure_future(call(app, "POST", CHAT, BODIES[0][1] | {"stream": True}))
        await call(app, "POST", CHAT, BODIES[0][1] | {"stream": True}, leave_after=1)
        engine.hold.set()
        return await stays

    reply = asyncio.run(two())
    assert "".join(e["choices"][0]["delta"]["content"] for e in reply.events()) == "Hello"
    assert len(engine.aborted) == len(engine.ended) == 1


def test_cancelling_the_server_task_aborts_too() -> None:
    engine = FakeEngine()
    app = create_app(engine)

    async def cancel() -> None:
        engine.hold = asyncio.Event()
        task = asyncio.ensure_future(call(app, "POST", CHAT, BODIES[0][1]))
        while not engine.calls:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert len(engine.aborted) == 1


def test_one_failing_prompt_ends_its_batch() -> None:
    engine = FakeEngine(fail_after=(3, InvalidRequestError("odd", "prompt")))
    reply = post(create_app(engine), TEXT, {"prompt": ["a", "b"]})
    assert reply.status == 400
    assert len(engine.aborted) == 2


def test_merge_gives_back_pressure() -> None:
    """A reader that waits must stop the writers: the engine then gathers what comes meanwhile."""
    produced = 0

    async def endless() -> Any:
        nonlocal produced
        while True:
            produced += 1
            yield produced
            await asyncio.sleep(0)

    async def read_one() -> None:
        stream = merge([endless(), endless()], 2)
        await anext(stream)
        await asyncio.sleep(0.02)
        await stream.aclose()

    asyncio.run(read_one())
    assert produced <= 8


class Panic(BaseException):
    """As pyo3_runtime.PanicException: no Exception."""


@both
def test_a_panic_in_one_of_several_prompts_ends_the_request(stream: bool) -> None:
    """Its reader would wait for ever for what no pump sends."""

    async def panics() -> Any:
        yield 1
        raise Panic

    async def holds() -> Any:
        yield 2
        await asyncio.sleep(3600)

    async def read() -> None:
        streams = [panics(), holds()]
        with pytest.raises(Panic):
            async for _ in merge(streams if stream else streams[::-1], 2):
                pass

    asyncio.run(asyncio.wait_for(read(), 30))
