"""Clients that leave in the middle of something: nothing of theirs stays, the next one has their place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo.server.app import create_app
from octavo.server.state import ServerSettings, ServerState
from support.fake_engine import FakeEngine
from support.live import BODY, CHAT, run, running, until

ONE_PLACE = ServerSettings(max_concurrent_requests=1)
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@dataclass
class Phase:
    """Where a client leaves.

    Attributes:
        path, body: its request.
        prepare: makes the engine stand still there.
        reached: says that it does.
        part: of the body's bytes, which are sent; the rest never comes.
    """

    path: str = CHAT
    body: dict[str, Any] = field(default_factory=lambda: BODY)
    prepare: Callable[[FakeEngine], None] = lambda engine: setattr(engine, "hold", asyncio.Event())
    reached: Callable[[FakeEngine, ServerState], object] = lambda engine, state: engine.calls
    part: float = 1.0


def wait_in_the_queue(engine: FakeEngine) -> None:
    engine.gate = asyncio.Event()


def compile_for_ever(engine: FakeEngine) -> None:
    async def compile_async(params: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            engine.aborted.append(None)

    engine.compiler.compile_async = compile_async  # type: ignore[method-assign,assignment]


def write_half_a_call(engine: FakeEngine) -> None:
    engine.reply, engine.hold = '<tool_call>\n{"name": "f", "arguments": {}', asyncio.Event()


def embed_for_ever(engine: FakeEngine) -> None:
    """All inputs but the first wait."""
    answer = engine._answer

    async def _answer(request: Any) -> Any:
        if engine.ended:
            engine.calls.append(request)
            try:
                await asyncio.Event().wait()
            finally:
                engine.aborted.append(request.request_id)
        async for output in answer(request):
            yield output

    engine._answer = _answer  # type: ignore[method-assign]


PHASES = {
    "the body comes": Phase(part=0.5, reached=lambda engine, state: state.buffered),
    "it waits in the queue": Phase(
        prepare=wait_in_the_queue, reached=lambda engine, state: state.in_flight and not engine.calls
    ),
    "its grammar is compiled": Phase(body=BODY | {"response_format": SCHEMA}, prepare=compile_for_ever),
    "tokens come": Phase(),
    "an answer is made in one piece": Phase(body=BODY | {"stream": False}),
    "many answers are made": Phase(body=BODY | {"n": 64}),
    "a call of a tool is open": Phase(body=BODY | {"tools": [TOOL]}, prepare=write_half_a_call),
    "prompts are scored": Phase("/v1/completions", {"prompt": ["a", "b"], "prompt_logprobs": 1}),
    "a prompt is encoded again": Phase("/v1/completions", {"prompt": "a" * 100, "echo": True}),
    "some inputs are embedded": Phase(
        "/v1/embeddings", {"input": ["a", "b"]}, embed_for_ever, lambda engine, state: len(engine.calls) > 1
    ),
    "a response is to be stored": Phase("/v1/responses", {"input": "a", "store": True}),
    "a response is streamed": Phase("/v1/responses", {"input": "a", "store": True, "stream": True}),
    "a message is written": Phase("/v1/messages", BODY | {"max_tokens": 9}),
}


def head(path: str, length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_nothing_stays_of_a_client_that_leaves_while(phase: Phase) -> None:
    async def test() -> None:
        engine = FakeEngine()
        phase.prepare(engine)
        app = create_app(None, ONE_PLACE)
        state: ServerState = app.state.octavo
        async with running(engine, app=app) as server:
            data = json.dumps(phase.body).encode()
            _, writer = await server.connect(
                head(phase.path, len(data)) + data[: int(len(data) * phase.part)]
            )
            await until(lambda: phase.reached(engine, state))
            writer.transport.abort()
            await until(lambda: not state.in_flight and not state.buffered)
            await until(lambda: len(engine.calls) == len(engine.aborted) + len(engine.ended))
            stored = state.kept.get("responses")
            assert stored is None or not stored._count, "an answer that nobody has is not stored"
            engine.hold = engine.gate = None
            vars(engine.compiler).pop("compile_async", None)
            vars(engine).pop("_answer", None)
            reply = await server.client.post(CHAT, json=BODY | {"stream": False})
            assert reply.status_code == 200, "the one place is free again"

    run(test)


class PanicException(BaseException):
    """As native libraries of Rust raise it: no Exception, so whoever catches those alone lets it pass."""


def panic(*args: Any, **kwargs: Any) -> Any:
    raise PanicException("regex search error at /home/operator/private")


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("encode", "/v1/completions", {"prompt": "a"}),
        ("encode", "/v1/completions", {"prompt": "a" * 100_000}),
        ("render_chat", CHAT, BODY | {"stream": False}),
        ("encode", "/tokenize", {"prompt": "a"}),
    ],
)
def test_a_panic_of_the_tokenizer_ends_its_request_alone(name: str, path: str, body: dict[str, Any]) -> None:
    async def test() -> None:
        engine = FakeEngine(max_model_len=200_000)
        app = create_app(None, ONE_PLACE)
        owner: Any = engine.tokenizer if name == "encode" else engine
        kept = getattr(owner, name)
        setattr(owner, name, panic)
        async with running(engine, app=app) as server:
            reply = await server.client.post(path, json=body)
            assert reply.status_code == 500
            assert "operator" not in reply.text
            assert not app.state.octavo.in_flight
            setattr(owner, name, kept)
            assert (await server.client.post(path, json=body)).status_code == 200

    run(test)
