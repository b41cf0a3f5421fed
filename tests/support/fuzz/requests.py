"""Requests: bodies of every endpoint, and bytes on a connection. Behind the app is a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import zlib
from collections.abc import Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.connections import Connection, ConnectionLimits, Connections
from octavo.server.edge import Edge, EdgeRules
from support.asgi import Reply, call
from support.fake_engine import FakeEngine
from support.fuzz.changes import spoil, spoil_json
from support.fuzz.target import Wrong, short
from support.fuzz.texts import LARKS, SCHEMAS, TAGS

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMAS[0]}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMAS[0], "strict": True}}
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
BODIES: dict[str, tuple[Any, ...]] = {
    "/v1/chat/completions": (
        {"messages": HI, "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 1, "n": 2, "stop": ["l"]},
        {"messages": HI, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True,
         "top_logprobs": 2},
        {"messages": HI, "tools": [TOOL], "tool_choice": "auto"},
        {"messages": [*HI, CALL, {"role": "tool", "tool_call_id": "c", "content": "5"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "response_format": SCHEMA},
        {"messages": HI, "logit_bias": {"104": 5}, "presence_penalty": 0.5, "bad_words": ["ab"], "min_p": 0.1,
         "allowed_token_ids": [104, 256], "priority": 1, "metadata": {"a": "b"}, "user": "u"},
    ),
    "/v1/completions": (
        {"prompt": "a", "max_tokens": 3, "echo": True, "logprobs": 2, "suffix": None},
        {"prompt": ["a", "b"], "stream": True, "n": 2, "best_of": 2, "prompt_logprobs": 1},
        {"prompt": [[1, 2], [3]], "use_beam_search": True, "n": 2, "temperature": 0},
        {"prompt": "a", "structured_outputs": {"grammar": LARKS[0]}},
        {"prompt": "a", "structured_outputs": {"structural_tag": TAGS[0]}, "guided_regex": None},
    ),
    "/v1/responses": (
        {"input": "Hi", "instructions": "be brief", "max_output_tokens": 5, "store": False},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                   {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": "5"}], "stream": True},
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMAS[2]}}},
        {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": SCHEMAS[0]}],
         "previous_response_id": "resp_x"},
    ),
    "/v1/messages": (
        {"model": "fake/model", "messages": HI, "max_tokens": 4, "system": "s", "stop_sequences": ["l"]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 4,
         "stream": True, "thinking": {"type": "disabled"}},
        {"messages": HI, "max_tokens": 4, "tools": [{"name": "f", "input_schema": {"type": "object"}}],
         "tool_choice": {"type": "any"}},
    ),
    "/v1/responses/input_tokens": ({"input": "Hi", "instructions": "be brief"},),
    "/v1/messages/count_tokens": ({"messages": HI, "system": "s", "tools": []},),
    "/v1/embeddings": ({"input": "a"}, {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 4},
                       {"input": [[1, 2]]}),
    "/tokenize": ({"prompt": "a", "return_token_strs": True}, {"messages": HI,
    "add_generation_prompt": True}),
    "/detokenize": ({"tokens": [104, 105]},),
    **dict.fromkeys(("/", "/generate", "/generate_stream"), (
        {"inputs": "Hi", "parameters": {"max_new_tokens": 4, "details": True, "top_n_tokens": 2, "seed": 1}},
        {"inputs": "Hi", "parameters": {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "stop": ["l"]}},
        {"inputs": "Hi", "parameters": {"grammar": {"type": "json", "value": SCHEMAS[0]}, "truncate": 3}},
        {"inputs": "Hi", "parameters": {"best_of": 2, "do_sample": True, "decoder_input_details": True}},
    )),
    "/chat_tokenize": ({"messages": HI},),
    "/invocations": ({"messages": HI}, {"inputs": "Hi"}),
}  # fmt: skip
"""Right bodies of every endpoint that takes one."""


def endpoints(app: FastAPI) -> set[str]:
    """Paths that take a body."""
    return {path for path, methods in app.openapi()["paths"].items() if "post" in methods}


class Bodies:
    """One request: an answer below 500, whole, its error on one line."""

    base_s, byte_s, memory = 0.25, 2e-5, 3 << 30
    words = (
        "role", "content", "user", "assistant", "tool", "system", "developer", "type", "text", "function",
        "name",
        "arguments", "json_schema", "schema", "strict", "auto", "required", "none", "stream", "n", "stop",
        "logprobs", "image_url", "input_text", "max_tokens", "guided_json", "guided_choice",
        "structured_outputs",
        "regex", "choice", "grammar", "chat_template_kwargs", "continue_final_message", "stop_token_ids",
        "repetition_penalty", "length_penalty", "min_tokens", "ignore_eos", "cache_salt", "model",
        "fake/model",
        "tool_result", "tool_use", "thinking", "reasoning", "item_reference", "truncate_prompt_tokens",
        "base64",
        "generated_token_ids", "prediction", "response_format", "add_special_tokens", "echo", "best_of",
    )  # fmt: skip

    def __init__(self) -> None:
        self.seeds = [
            path.encode() + b"\n" + json.dumps(body).encode()
            for path, bodies in BODIES.items()
            for body in bodies
        ]
        self._engine = FakeEngine()
        self._app = create_app(self._engine)
        if endpoints(self._app) != set(BODIES):
            raise Wrong(f"endpoints without bodies here: {endpoints(self._app) ^ set(BODIES)}")
        self._loop = asyncio.new_event_loop()

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        path, _, body = seed.partition(b"\n")
        bodies = [other.partition(b"\n")[2] for other in others]
        if rng.random() < 0.15:
            body = spoil(rng, body, bodies)
        else:
            with contextlib.suppress(ValueError, RecursionError):
                value = spoil_json(rng, json.loads(body), self.words, list(map(_value, bodies)))
                body = json.dumps(value).encode()
        if rng.random() < 0.03:
            path = rng.choice(list(BODIES)).encode()
        return path + b"\n" + body

    def run(self, data: bytes) -> str:
        path, _, body = data.partition(b"\n")
        try:
            name = path.decode()
        except UnicodeDecodeError:
            return "no path"
        try:
            reply = self._loop.run_until_complete(asyncio.wait_for(call(self._app, "POST", name, body), 60))
        finally:
            for what in (self._engine.calls, self._engine.ended, self._engine.aborted, self._engine.rendered):
                what.clear()
        state = self._app.state.octavo
        if state.in_flight or state.buffered:
            raise Wrong(f"{state.in_flight} requests and {state.buffered} bytes are left")
        return f"{name} {judged(reply)}"


def _value(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def judged(reply: Reply) -> str:
    """The outcome of a response.

    Raises:
        Wrong: a server error, a part of an answer, or an error that nobody can read.
    """
    if not reply.complete or reply.status >= 500 or reply.status == 429:
        raise Wrong(f"status {reply.status}, whole: {reply.complete}: {reply.body[:300]!r}")
    if reply.status == 200:
        if b'"error"' in reply.body and b"internal error" in reply.body:
            raise Wrong(f"an error within a stream: {reply.body[-300:]!r}")
        return "200 stream" if "event-stream" in reply.headers.get("content-type", "") else "200"
    error = reply.json()["error"]
    message = error if isinstance(error, str) else error["message"]  # (a text is TGI's)
    if not message or "\n" in message or len(message) > 500 or "internal error" in message:
        raise Wrong(f"status {reply.status} with {message[:300]!r}")
    return f"{reply.status} {short(message)}"


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _post(body: bytes, more: bytes = b"") -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + more + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


class Sockets:
    """A connection's bytes, in pieces: what comes back is HTTP, and nothing of the connection stays."""

    base_s, byte_s, memory = 0.25, 2e-5, 3 << 30
    words = (
        b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b"\r\n\r\n", b"GET ", b"POST ", b"HEAD ", b"OPTIONS ",
        b"PRI * ",
        b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"Host: localhost", b"Host: evil", b"Host:",
        b": ", b":",
        b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: -1",
        b"Content-Length: 9999999999999999",
        b"Content-Length: 1, 2", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
        b"Connection: close",
        b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"Origin: null",
        b"Origin: http://a",
        b"Content-Type: text/plain", b"Content-Type: application/json", b"X-Request-Id: a", b"5\r\nhello\r\n",
        b"0\r\n\r\n", b"ffffffff\r\n", b"-1\r\n", b"%00", b"/%2e%2e/", b"/../", b"?a=b", b"/v1/models/x",
        b"*",
        b"http://h/p", b"/metrics", b"\xff\xfe", b"A" * 300, b"\r\n X: folded", b"Authorization: Bearer k",
    )  # fmt: skip

    def __init__(self) -> None:
        body = b'{"prompt": "a", "max_tokens": 2}'
        stream = b'{"prompt": "a", "stream": true}'
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        chunked = _post(b"", b"Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 0\r\n", b"")
        self.seeds = [
            HEALTH, HEALTH * 3, _post(body), _post(stream), _post(body, b"Expect: 100-continue\r\n"),
            chunked + chunks, _post(body, b"Connection: close\r\n"), HEALTH.replace(b"1.1", b"1.0"),
            b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nX-Request-Id: abc\r\n\r\n",
            b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
            _post(body) + HEALTH + _post(stream),
        ]  # fmt: skip
        self._app = create_app(FakeEngine())
        self._engine = self._app.state.octavo.engine
        self._config = uvicorn.Config(
            Edge(self._app, EdgeRules(frozenset())), log_level="critical", access_log=False,
            interface="asgi3",
            http="h11", lifespan="off", ws="none", server_header=False, timeout_keep_alive=5,
        )  # fmt: skip
        self._config.load()
        self._state = uvicorn.server.ServerState()
        self._reasons: list[str] = []
        self._connections = Connections(ConnectionLimits(), self._reasons.append)
        self._loop = asyncio.new_event_loop()

    def change(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        if rng.random() < 0.3:
            return spoil(rng, seed, others)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(seed) + 1)
            lines = [match.start() for match in re.finditer(rb"\r\n", seed)]
            at = rng.choice(lines) if lines and rng.random() < 0.6 else at
            to = at + rng.choice((0, 0, 2, 2, 6, 20))
            word = rng.choice(self.words)
            seed = seed[:at] + (b"\r\n" + word if rng.random() < 0.4 else word) + seed[to:]
        return seed[: 64 << 10]

    def run(self, data: bytes) -> str:
        self._reasons.clear()
        self._engine.calls.clear(), self._engine.ended.clear(), self._engine.aborted.clear()
        return self._loop.run_until_complete(asyncio.wait_for(self._talk(data), 60))

    async def _talk(self, data: bytes) -> str:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        if not self._connections.take(""):
            raise Wrong("there is no place for a connection")
        connection = Connection(self._connections, "", self._config, self._state)
        await loop.connect_accepted_socket(lambda: connection, theirs)
        answer = bytearray()
        for piece in pieces(data):
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                ours.send(piece)
            await self._quiet(connection, ours, answer)
        ours.close()
        for _ in range(10_000):
            if connection not in self._connections.open and not self._state.tasks:
                break
            await asyncio.sleep(0)
        self._nothing_left()
        return self._judged(bytes(answer))

    async def _quiet(self, connection: Connection, ours: socket.socket, answer: bytearray) -> None:
        """Read what comes until the server does nothing for this connection any more."""
        still = 0
        while still < 4:
            await asyncio.sleep(0)
            try:
                part = ours.recv(1 << 16)
            except (BlockingIOError, ConnectionResetError):
                part = b""
            answer += part
            still = 0 if part or (connection.busy and self._can_end(connection)) else still + 1

    @staticmethod
    def _can_end(connection: Connection) -> bool:
        """The request is whole, so its answer comes without another byte."""
        return connection._is_whole and connection in connection._all.open

    def _nothing_left(self) -> None:
        all_, state = self._connections, self._app.state.octavo
        left = (len(all_.open), len(all_.idle), all_.behind, all_._num_open, state.in_flight, state.buffered)
        if any(left) or self._state.tasks:
            raise Wrong(f"left are (open, idle, behind, counted, in flight, buffered): {left}")

    def _judged(self, answer: bytes) -> str:
        statuses = re.findall(rb"(?:\A|(?<=[}\n\"\]]))HTTP/1\.1 (\d{3})", answer)
        if answer and not answer.startswith(b"HTTP/1.1 "):
            raise Wrong(f"no HTTP: {answer[:200]!r}")
        if any(status >= b"500" for status in statuses) or b"internal error" in answer:
            raise Wrong(f"a server error: {answer[:500]!r}")
        seen = sorted({status.decode() for status in statuses})
        return f"{' '.join(seen) or 'nothing'}; {' '.join(sorted(set(self._reasons))) or 'kept'}"


def pieces(data: bytes) -> list[bytes]:
    """The bytes in up to four parts, the same for the same bytes."""
    rng = random.Random(zlib.crc32(data))
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(4)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
