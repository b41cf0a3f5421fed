"""Items of earlier answers by their ids, as the AI SDK names them."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.openai import item_references
from octavo.server.state import ServerSettings
from octavo.server.store import ResponseStore, Stored
from support.asgi import call, post
from support.fake_engine import FakeEngine

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "now", "parameters": {"type": "object"}}]
CALL = 'Let me see.\n<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'
HI = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


def references(*names: str) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": name} for name in names]


def test_named_items_are_as_good_as_sent_ones(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = CALL
    output = post(app, PATH, {"input": [HI], "tools": TOOLS}).json()["output"]
    text, called = output
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "noon"}
    engine.reply = "Hello"
    named = [HI, *references(text["id"], called["id"]), result]
    for given in (named, [HI, text, called, result]):
        assert post(app, PATH, {"input": given, "tools": TOOLS}).status == 200
    first, second = (bytes(each.prompt).decode() for each in engine.calls[1:])
    assert first == second
    assert "Let me see." in first
    assert first.endswith("tool:noon\nassistant:")
    counts = [
        post(app, PATH + "/input_tokens", {"input": given, "tools": TOOLS}).json()["input_tokens"]
        for given in (named, [HI, text, called, result])
    ]
    assert counts == [len(first)] * 2


@pytest.mark.parametrize(
    ("item", "status", "text"),
    [
        ({"id": "msg_1"}, 404, "input[1]: there is no item 'msg_1' (any more)"),
        ({}, 400, "input[1]: a reference has an id"),
        ({"id": 5}, 400, "input[1]: a reference has an id"),
        ({"id": "msg_1", "x": 1}, 400, "unknown field input[1].x"),
    ],
)
def test_references_to_nothing(app: FastAPI, item: dict[str, Any], status: int, text: str) -> None:
    reply = post(app, PATH, {"input": [HI, {"type": "item_reference", **item}]})
    assert (reply.status, text in reply.error["message"]) == (status, True), reply.body


def test_items_go_with_their_response_and_are_their_owners() -> None:
    app = create_app(FakeEngine(), ServerSettings(api_keys=("a", "b")))
    mine, others = ({"authorization": f"Bearer {key}"} for key in "ab")
    answer = post(app, PATH, {"input": "Hi"}, headers=mine).json()
    again = {"input": [HI, *references(answer["output"][0]["id"])]}
    assert post(app, PATH, again, headers=others).status == 404
    assert post(app, PATH, again, headers=mine).status == 200
    import asyncio

    asyncio.run(call(app, "DELETE", f"{PATH}/{answer['id']}", headers=mine))
    assert post(app, PATH, again, headers=mine).error["code"] == "item_not_found"
    unstored = post(app, PATH, {"input": "Hi", "store": False}, headers=mine).json()["output"][0]["id"]
    assert post(app, PATH, {"input": references(unstored)}, headers=mine).status == 404


def test_a_response_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    read: list[bytes] = []
    loads = item_references.json.loads
    monkeypatch.setattr(item_references.json, "loads", lambda data: read.append(data) or loads(data))
    store = ResponseStore()
    store.put("", "r", Stored(b"[]", b'{"output": [{"id": "a"}, {"id": "b"}]}', ("a", "b")))
    given = references("a", "b", "a")
    found = asyncio.run(item_references.with_referenced(given, store, ""))
    assert found == [{"id": "a"}, {"id": "b"}, {"id": "a"}]
    assert len(read) == 1


def test_the_store_forgets_the_items_of_what_goes() -> None:
    store = ResponseStore(most=2)
    for name in "abc":
        store.put("o", name, Stored(b"", b"", (f"{name}1", f"{name}2")))
    assert store.holding("o", "a1") is None
    assert store.holding("o", "b2") == store.get("o", "b")
    assert store.holding("other", "b2") is None
    store.remove("o", "b")
    store.remove("o", "c")
    assert not store._items
