"""From a free port to the last byte: starting, signals, draining. Over real sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator

import httpx
import pytest

from octavo.errors import CheckpointError, EngineDeadError
from octavo.server.listen import PortInUseError, bind
from octavo.structured import is_compiling
from support.fake_engine import FakeEngine
from support.live import BODY, CHAT, run, running


def test_the_port_is_taken_before_anything_is_loaded() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"127.0.0.1:{port}: Address already in use.*--port"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["\ud800", "x" * 70, "192.0.2.1"])
def test_hosts_that_are_not_ours(host: str) -> None:
    with pytest.raises(PortInUseError, match=r"cannot listen on .*; change --host"):
        bind(host, 0)


def test_while_loading_the_answer_is_503_then_200() -> None:
    async def test() -> None:
        async with running(None) as server:
            early = await server.client.get("/health")
            assert (early.status_code, early.json()) == (503, {"status": "starting"})
            assert (await server.client.post(CHAT, json=BODY)).status_code == 503
            engine = FakeEngine()
            server.loaded.set_result(engine)
            while (await server.client.get("/health")).status_code != 200:
                await asyncio.sleep(0.01)
            assert engine.prepared
            assert (await server.client.post(CHAT, json=BODY)).status_code == 200

    run(test)


def test_an_engine_that_cannot_be_loaded_ends_the_server() -> None:
    async def test() -> None:
        async with running(None) as server:
            server.loaded.set_exception(CheckpointError("broken"))
            with pytest.raises(CheckpointError, match="broken"):
                await server.done

    run(test)


def test_a_signal_while_loading_ends_the_server() -> None:
    async def test() -> None:
        async with running(None) as server:
            assert (await server.client.get("/health")).status_code == 503
            os.kill(os.getpid(), signal.SIGINT)
            assert await server.done

    run(test)


async def first_text(stream: httpx.Response) -> AsyncIterator[str]:
    async for line in stream.aiter_lines():
        if line:
            yield line


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_end_and_refuses_new_ones(name: signal.Signals) -> None:
    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        assert engine.hold is not None
        async with running(engine) as server, server.client.stream("POST", CHAT, json=BODY) as stream:
            lines = first_text(stream)
            seen = [await anext(lines)]
            os.kill(os.getpid(), name)
            while (health := await server.client.get("/health")).status_code == 200:
                await asyncio.sleep(0.01)
            assert health.json() == {"status": "draining"}
            assert server.heard.finishing == [1]
            refused = await server.client.post(CHAT, json=BODY)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert not engine.draining
            engine.hold.set()
            seen += [line async for line in lines]
            assert seen[-1] == "data: [DONE]"
            assert "error" not in "".join(seen)
            assert len(seen) == 7
            assert await server.done
            assert engine.shut
            with pytest.raises(httpx.ConnectError):
                await server.client.get("/health")

    run(test)


@pytest.mark.parametrize("second_signal", [False, True])
def test_what_outlives_the_time_limit_is_told(second_signal: bool) -> None:
    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        limit = 1000.0 if second_signal else 0.05
        async with running(engine, limit) as server, server.client.stream("POST", CHAT, json=BODY) as stream:
            lines = first_text(stream)
            seen = [await anext(lines)]
            os.kill(os.getpid(), signal.SIGTERM)
            if second_signal:
                while (await server.client.get("/health")).status_code == 200:
                    await asyncio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGTERM)
            seen += [line async for line in lines]
            assert "aborted" in seen[-2]
            assert seen[-1] == "data: [DONE]"
            assert not await server.done

    run(test)


def test_a_grammar_that_outlives_the_time_limit_is_a_503_and_holds_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        engine = FakeEngine()
        begun, go = threading.Event(), threading.Event()

        def hold(*_: object) -> None:
            begun.set()
            assert go.wait(60)

        monkeypatch.setattr(engine.compiler, "_tried", hold)
        async with running(engine, 0.05) as server:
            body = BODY | {"stream": False, "structured_outputs": {"regex": "a"}}
            request = asyncio.ensure_future(server.client.post(CHAT, json=body))
            await asyncio.to_thread(begun.wait)
            os.kill(os.getpid(), signal.SIGTERM)
            answer = await request
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert not await server.done
            assert is_compiling()  # so the command leaves without waiting for the thread
            go.set()

    run(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_connection_aborts(stream: bool) -> None:
    async def test() -> None:
        engine = FakeEngine(hold=asyncio.Event())
        async with running(engine) as server:
            request = asyncio.ensure_future(server.client.post(CHAT, json=BODY | {"stream": stream}))
            while not engine.calls:
                await asyncio.sleep(0.01)
            request.cancel()
            while not engine.aborted:
                await asyncio.sleep(0.01)
            assert engine.aborted == [engine.calls[0].request_id]

    run(test)


def test_a_reader_that_stops_reading_holds_only_itself_up() -> None:
    async def test() -> None:
        engine = FakeEngine(reply="x" * 200_000, max_model_len=1 << 20)
        async with running(engine) as server, server.client.stream("POST", CHAT, json=BODY):
            await asyncio.sleep(0.2)  # nobody reads: the stream fills the buffers and waits
            quick = await server.client.post(CHAT, json=BODY | {"max_tokens": 3})
            assert quick.text.endswith("data: [DONE]\n\n")
            assert len(engine.ended) == 1

    run(test)


def test_an_engine_that_dies_ends_the_server() -> None:
    """/health says 503 until the process leaves, with the reason as its error."""

    async def test() -> None:
        engine = FakeEngine()
        async with running(engine) as server:
            assert (await server.client.get("/health")).status_code == 200
            engine.healthy = False
            assert (await server.client.get("/health")).status_code == 503
            engine.failure = "the GPU can no longer be used (CUDA error: unknown error)"
            with pytest.raises(EngineDeadError, match="the GPU can no longer be used"):
                await asyncio.wait_for(server.done, 20)
            assert server.heard.finishing == []

    run(test)
