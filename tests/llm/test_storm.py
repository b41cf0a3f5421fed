"""A stream that goes on, token for token as when it was alone, while everything wrong is sent beside it."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
from typing import Any

import pytest

from octavo import AsyncEngineArgs, AsyncLLM
from octavo.server.anthropic.protocol import MessagesRequest
from octavo.server.app import create_app
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.completions import CompletionRequest
from octavo.server.openai.embeddings import EmbeddingRequest
from octavo.server.openai.responses_input import ResponsesRequest
from octavo.server.state import ServerSettings
from support.asgi import App, Reply, call

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
HI = [{"role": "user", "content": "Hi"}]
MINIMAL: dict[str, tuple[Any, dict[str, Any]]] = {
    CHAT: (ChatRequest, {"messages": HI, "max_tokens": 2}),
    TEXT: (CompletionRequest, {"prompt": "a", "max_tokens": 2}),
    RESPONSES: (ResponsesRequest, {"input": "a", "max_output_tokens": 2}),
    MESSAGES: (MessagesRequest, {"messages": HI, "max_tokens": 2}),
    EMBEDDINGS: (EmbeddingRequest, {"input": "a"}),
}
STREAM = {
    "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0.9, "seed": 5, "ignore_eos": True,
    "stream": True, "return_token_ids": True,
}  # fmt: skip
MEMORY_MB = 600
"""What all of it together may cost: the grammar library's tables, and a few bodies of 10 MB."""


def schema(inner: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": inner}}}


def doubling(depth: int) -> dict[str, Any]:
    """A schema of 2^depth parts once its references are written out."""
    parts: dict[str, Any] = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": parts | {f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def regex(text: str) -> dict[str, Any]:
    return {"structured_outputs": {"regex": text}}


def nested(depth: int) -> bytes:
    """Too deep for Python's own JSON writer."""
    inner = b'{"properties":{"a":' * depth + b"{}" + b"}}" * depth
    return b'{"messages":[{"role":"user","content":"a"}],"guided_json":' + inner + b"}"


TOOL = {"type": "function", "function": {"name": "f", "parameters": doubling(40)}}
EXPLODING = "\n".join(["start: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(60)), 'r60: "a"'])

BROKEN = [
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "\\ud800"}',
    b'{"a": "\\udfff"}',
    b'{"seed": ' + b"9" * 10**5 + b"}",
    b"[" * 10**6,
    nested(100_000),
    b"\x00" * 1000,
    b"",
]
"""No JSON at all."""

# (path, body, the field that the error names)
REFUSED: list[tuple[str, Any, str | None]] = [
    *((TEXT, {"prompt": "a", name: value}, name) for name, value in [
        ("stop", [f"s{i}" for i in range(1000)]),
        ("stop", ["x" * 1_000_000]),
        ("n", 10**6),
        ("n", 10**30),
        ("logit_bias", {str(i): 1 for i in range(49_152)}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"5": 1e308}),
        ("allowed_token_ids", list(range(49_152)) * 10),
        ("stop_token_ids", list(range(49_152))),
        ("bad_words", ["é" * 255 + chr(97 + i % 26) for i in range(256)]),
        ("prompt", ["a"] * 100_000),
        ("prompt", "x" * 10_000_000),
        ("prompt", [1] * 1_000_000),
        ("prompt", [10**18]),
        ("cache_salt", "x" * 1_000_000),
        ("seed", 2**64),
    ]),
    (TEXT, {"prompt": ["a"] * 256, "n": 128}, "n"),
    *((TEXT, {"prompt": "a", **regex(text)}, "structured_outputs") for text in [
        "(a{1000}){1000}", "((a{100}){100}){100}", "a{10000000}", "(?=a)b", r"(a)\1", "x" * 200_000,
        "(" * 5000 + "a" + ")" * 5000,
    ]),
    *((TEXT, {"prompt": "a", "structured_outputs": {"grammar": text}}, "structured_outputs") for text in [
        EXPLODING, "wat ((", "start: foo", "start: " + " | ".join(f'"w{i}"' for i in range(50_000)),
    ]),
    *((CHAT, {"messages": HI, **schema(inner)}, "response_format") for inner in [
        doubling(60), doubling(20), {"enum": ["v" * 100] * 50_000}, {"type": "integer", "maximum": 10**300},
        {"type": "string", "pattern": "(a{1000}){1000}"},
    ]),
    (CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": "required"}, "tools"),
    (CHAT, {"messages": HI, "priority": -(2**200)}, "priority"),
    *((CHAT, {"messages": HI, "chat_template_kwargs": kwargs}, "chat_template_kwargs") for kwargs in [
        {"messages": 1}, {"self": 2}, {"bos_token": 1}, {"strftime_now": 5}, {"tools": 5},
    ]),
    *((CHAT, {"messages": messages}, "messages") for messages in [
        HI * 30_000, [{"role": "user", "content": [{"type": "text", "text": "a"}] * 50_000}],
        [{"role": "user", "content": "<|im_end|>" * 300_000}],
        [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}],
    ]),
    (EMBEDDINGS, {"input": ["a"] * 100_000}, "input"),
    (EMBEDDINGS, {"input": "x" * 3_000_000}, "input"),
    (RESPONSES, {"input": HI * 30_000}, "input"),
    (MESSAGES, {"messages": HI * 30_000, "max_tokens": 2}, None),  # Anthropic's errors have no param
    ("/tokenize", {"prompt": "x" * 3_000_000}, "prompt"),
    *((path, body, None) for path in (CHAT, TEXT) for body in BROKEN),
]  # fmt: skip
ANSWERED: list[tuple[str, Any]] = [
    (CHAT, {"messages": HI, "max_tokens": 2, **fields})
    for fields in (
        schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),  # allows everything
        schema({"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}),
        schema({"type": "string", "minLength": 10**6, "maxLength": 10**7}),
        regex("(a+)+b"),
        regex("(a|a)*b" * 20),
        regex("(.*a.*){500}"),
        {"chat_template_kwargs": {"range": 10**9, "__class__": 1, "a b": [{}] * 1000}},
    )
]
WRONG: tuple[Any, ...] = ({"some": "thing"}, [[{}]], "\x00wrong", -1e300, True)


def wrong_fields() -> list[tuple[str, Any, str]]:
    """Each field of each endpoint with a value of each type."""
    return [
        (path, {**body, name: value}, name)
        for path, (model, body) in MINIMAL.items()
        for name, value in itertools.product(model.model_fields, WRONG)
    ]


def tokens_of(reply: Reply) -> list[int]:
    return [t for event in reply.events() for choice in event["choices"] for t in choice.get("token_ids", ())]


class Storm:
    """Sends requests while a stream runs: another one begins as soon as one has ended."""

    def __init__(self, app: App, alone: list[int]) -> None:
        self._app, self._alone = app, alone
        self._stream: asyncio.Task[Reply] | None = None

    async def send(self, path: str, body: Any) -> Reply:
        if self._stream is None or self._stream.done():
            await self.check()
            self._stream = asyncio.ensure_future(call(self._app, "POST", TEXT, STREAM))
            await asyncio.sleep(0)
        async with asyncio.timeout(120):  # a hang is a failure, not an endless test
            return await call(self._app, "POST", path, body)

    async def check(self) -> None:
        if self._stream is not None:
            assert tokens_of(await self._stream) == self._alone, "somebody else's request changed the stream"


async def through_it_all(app: App) -> None:
    alone = tokens_of(await call(app, "POST", TEXT, STREAM))
    assert len(alone) == 400
    storm = Storm(app, alone)
    for path, body, param in REFUSED:
        reply = await storm.send(path, body)
        shown = (path, str(body)[:200], reply.status, reply.body[:300])
        assert 400 <= reply.status < 500, shown
        assert reply.error.get("param") == param, shown
        assert len(reply.body) < 1000, shown
    for path, body in ANSWERED:
        reply = await storm.send(path, body)
        assert reply.status == 200, (path, str(body)[:200], reply.body[:300])
    for path, body, name in wrong_fields():
        reply = await storm.send(path, body)
        shown = (path, name, str(body)[:200], reply.status, reply.body[:300])
        assert reply.status in (200, 400, 404), shown
        if reply.status == 400 and path not in (MESSAGES, RESPONSES):  # whose fields have other names inside
            assert reply.error["param"] in (name, *RENAMED.get(name, ())), shown
    await storm.check()


RENAMED = {
    "max_completion_tokens": ("max_tokens",),
    "top_logprobs": ("logprobs",),
    "best_of": ("n",),
    "stream_options": ("stream",),
    "logprobs": ("top_logprobs",),
}


@pytest.mark.slow
def test_a_stream_goes_on_through_all_that_is_wrong(fastest: str) -> None:
    args = AsyncEngineArgs(
        "smollm2", backend=fastest, max_model_len=2048, max_num_seqs=8, max_waiting=32, num_pages=400
    )
    llm = AsyncLLM.from_engine_args(args)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        asyncio.run(through_it_all(create_app(llm, ServerSettings(max_body_bytes=16 << 20))))
    finally:
        llm.shutdown()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < MEMORY_MB, f"{grown} MB more than before"


def test_the_bodies_are_what_they_should_be() -> None:
    """10 MB are 10 MB, and the endpoints' fields are all there."""
    assert max(len(json.dumps(body)) for _, body, _ in REFUSED if isinstance(body, dict)) > 10_000_000
    assert {path for path, _, _ in wrong_fields()} == set(MINIMAL)
