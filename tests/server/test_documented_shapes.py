"""Requests as clients' parameters document them: the status is their service's, answers pass their types.

The tables (support.shapes) are written by hand. Where Octavo's status is another than the documented one, the
row stands in `otherwise` with the reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest

from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import Reply, post
from support.fake_engine import FakeEngine
from support.shapes import MODEL, Table, chat, hub, messages, others, responses, texts
from support.shapes.reading import adapter, events, read, read_error

TABLES: list[Table] = [
    chat.CHAT, texts.COMPLETIONS, texts.EMBEDDINGS, responses.RESPONSES, responses.INPUT_TOKENS,
    messages.MESSAGES, messages.COUNT, hub.CHAT, hub.GENERATE, hub.STREAM, hub.ROOT, others.VLLM_CHAT,
    others.VLLM_TEXT, others.VLLM_SCORED, others.LLAMA_CPP,
]  # fmt: skip
TALK = 'Let me see.\n<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
FORCED = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
EACH = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.client)


def ask(table: Table, body: dict[str, Any], app: Any) -> Reply:
    return post(app, table.path, body, headers=dict(table.headers))


def served(reply: str = "Hello") -> Any:
    return create_app(FakeEngine(reply=reply, served_model_name=MODEL, max_model_len=1 << 13))


def ways(table: Table, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """A row's request whole, and streamed where that is another request."""
    body = table.body(fields)
    other = table.streams and not body.get("stream")
    return [body, {**body, "stream": True}] if other else [body]


@EACH
def test_taken(table: Table) -> None:
    """Answered by a text; requests with tools by a call, too."""
    wrong = []
    texts_of, calls, forced = served(), served(TALK), served(FORCED)
    for fields in table.taken:
        for body in ways(table, fields):
            for app in (texts_of, calls, forced) if body.get("tools") else (texts_of,):
                reply = ask(table, body, app)
                if reply.status != 200:
                    wrong.append((fields, reply.body[:200]))
                else:
                    read(table.reads, reply)
    assert wrong == []


@EACH
def test_refused(table: Table) -> None:
    """With the documented status, in the service's shape, by the name of the field."""
    wrong, app = [], served()
    for fields, status, name in table.refused:
        reply = ask(table, table.body(fields), app)
        if reply.status != status or (name or "") not in read_error(table.reads, reply):
            wrong.append((fields, status, name, reply.status, reply.body[:200]))
    assert wrong == []


@EACH
def test_otherwise(table: Table) -> None:
    """Octavo's own status, where it is not the service's: never by accident, and each has a reason."""
    wrong, app = [], served()
    for fields, documented, here, why in table.otherwise:
        assert documented != here
        assert why
        reply = ask(table, table.body(fields), app)
        if reply.status != here:
            wrong.append((fields, here, reply.status, reply.body[:200]))
    assert wrong == []


def names(params: Any) -> set[str]:
    if dataclasses.is_dataclass(params):
        return {field.name for field in dataclasses.fields(params)}
    return {*params.__annotations__, "stream"}


def exhaust(value: Any) -> None:
    """Look at every member: pydantic checks those of an Iterable when they are asked for."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str):
        for each in value:
            exhaust(each)


LAZY = {("openai text", "prompt"), ("openai vectors", "input")}
"""Of several Iterables pydantic takes the first, before it has looked at a member."""


@EACH
def test_they_are_the_clients_own(table: Table) -> None:
    """What is answered fits the client's type of a request, member by member."""
    if table.params is None:
        return
    known = names(table.params) | table.beside
    for fields in table.taken:
        body = table.body(fields)
        assert set(body) <= known | {"model"}, set(body) - known
        if not dataclasses.is_dataclass(table.params):
            typed = adapter(table.params).validate_python({k: v for k, v in body.items() if k != "stream"})
            exhaust({k: v for k, v in typed.items() if (table.reads, k) not in LAZY})


KEYED = [table for table in TABLES if table.path != "/"]


@pytest.mark.parametrize("table", KEYED, ids=lambda table: table.client)
@pytest.mark.parametrize("key", [None, "wrong"])
def test_keys(table: Table, key: str | None) -> None:
    """401 without a key and with a wrong one, in the service's shape; with the right one, an answer."""
    engine = FakeEngine(served_model_name=MODEL, max_model_len=1 << 13)
    app = create_app(engine, ServerSettings(api_keys=("right",)))
    header = "x-api-key" if table.reads.startswith("anthropic") else "authorization"
    scheme = "" if header == "x-api-key" else "Bearer "
    sent = {} if key is None else {header: scheme + key}
    reply = post(app, table.path, table.body({}), headers={**table.headers, **sent})
    assert reply.status == 401
    read_error(table.reads, reply)
    right = {**table.headers, header: f"{scheme}right"}
    assert post(app, table.path, table.body({}), headers=right).status == 200


LONG = {"messages": [{"role": "user", "content": "x" * 100}]}
TOO_LONG = [
    (chat.CHAT, LONG, 400, "messages"), (texts.COMPLETIONS, {"prompt": "x" * 100}, 400, "prompt"),
    (responses.RESPONSES, {"input": "x" * 100}, 400, "input"),
    (messages.MESSAGES, LONG, 400, "prompt is too long"),
    (texts.EMBEDDINGS, {"input": "x" * 100}, 400, "input"),
    (hub.GENERATE, {"inputs": "x" * 100}, 422, "inputs"),
    (hub.ROOT, {"inputs": "x" * 100}, 422, "inputs"), (hub.STREAM, {"inputs": "x" * 100}, 422, "inputs"),
    (hub.GENERATE, hub.asked(max_new_tokens=64), 422, "max_new_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "fields", "status", "said"), TOO_LONG)
def test_a_context_that_is_too_long(table: Table, fields: dict[str, Any], status: int, said: str) -> None:
    app = create_app(FakeEngine(served_model_name=MODEL, max_model_len=64))
    for body in ways(table, fields):
        reply = ask(table, body, app)
        assert (reply.status, said in read_error(table.reads, reply)) == (status, True), reply.body


@EACH
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"Hi"', b'{"model": NaN}'])
def test_what_is_no_request(table: Table, body: bytes) -> None:
    reply = post(served(), table.path, body, headers=dict(table.headers))
    assert reply.status == (422 if "hub t" in table.reads else 400)
    read_error(table.reads, reply)


def test_answers_of_calls_are_calls() -> None:
    """The types are not passed by texts alone: each API that has calls sends them as calls."""
    for table, fields in (
        (chat.CHAT, chat.with_tools(chat.WEATHER)),
        (responses.RESPONSES, {"tools": [responses.WEATHER]}),
        (messages.MESSAGES, {"tools": [messages.WEATHER]}),
    ):
        for body in ways(table, fields):
            reply = ask(table, body, served(TALK))
            found = events(reply) if body.get("stream") else [reply.json()]
            assert any("weather" in json.dumps(each) for each in found)
            assert "<tool_call>" not in reply.body.decode()


def test_no_request_is_there_twice() -> None:
    """A row says something that no other row of its client says."""
    for table in TABLES:
        said = [json.dumps(table.body(fields), sort_keys=True) for fields in table.rows]
        assert len(said) == len(set(said)), table.client


def test_they_are_many_with_those_that_were_recorded() -> None:
    written = {
        (table.path, json.dumps(table.body(fields), sort_keys=True))
        for table in TABLES
        for fields in table.rows
    }
    assert len(written) >= 500
    assert len({table.client for table in TABLES}) >= 12
    differs = sum(len(table.otherwise) for table in TABLES)
    assert differs < len(written) / 10
