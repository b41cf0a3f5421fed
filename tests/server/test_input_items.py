"""GET /v1/responses/{id}/input_items: a stored response's conversation, page by page."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from openai.types.responses import ResponseItemList

from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import call, get, post
from support.fake_engine import FakeEngine

PATH = "/v1/responses"
CONVERSATION = [
    {"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]},
    {"type": "function_call", "name": "now", "arguments": '{"zone": "UTC"}', "call_id": "call_1"},
    {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
    {"role": "user", "content": "And in words?"},
]


def listed(app: FastAPI, name: str, query: str = "") -> dict[str, Any]:
    import asyncio

    async def over(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "query_string": query.encode()}, receive, send)

    reply = asyncio.run(call(over, "GET", f"{PATH}/{name}/input_items"))
    found: dict[str, Any] = reply.json()
    return found if reply.status == 200 else {"status": reply.status, **found}


def kinds(page: dict[str, Any]) -> list[str]:
    return [item["type"] for item in page["data"]]


@pytest.fixture
def name(app: FastAPI) -> str:
    reply = post(app, PATH, {"input": CONVERSATION, "instructions": "Be kind."})
    found: str = reply.json()["id"]
    return found


def test_a_conversation_comes_back(app: FastAPI, name: str) -> None:
    page = listed(app, name, "order=asc")
    ResponseItemList.model_validate(page, strict=True)
    first, asked, told, last = page["data"]
    assert (first["role"], first["content"]) == ("user", CONVERSATION[0]["content"])
    assert {key: asked[key] for key in CONVERSATION[1]} == CONVERSATION[1]
    assert {key: told[key] for key in CONVERSATION[2]} == CONVERSATION[2]
    assert last["content"] == [{"type": "input_text", "text": "And in words?"}]
    assert len({item["id"] for item in page["data"]}) == 4
    assert (page["first_id"], page["last_id"], page["has_more"]) == (first["id"], last["id"], False)
    assert listed(app, name)["data"] == page["data"][::-1]


def test_pages_follow_each_other(app: FastAPI, name: str) -> None:
    whole = listed(app, name)["data"]
    found: list[dict[str, Any]] = []
    page = listed(app, name, "limit=3")
    while page["data"]:
        found += page["data"]
        more = page["has_more"]
        page = listed(app, name, f"limit=3&after={page['last_id']}")
        assert bool(page["data"]) == more
    assert found == whole
    assert page["first_id"] is page["last_id"] is None


def test_earlier_turns_are_part_of_it(app: FastAPI, name: str) -> None:
    later = post(app, PATH, {"input": "Thanks", "previous_response_id": name}).json()["id"]
    page = listed(app, later, "order=asc")
    assert kinds(page)[1:3] == ["function_call", "function_call_output"]
    assert kinds(page)[3:] == ["message"] * 3
    assert page["data"][-2]["content"] == [{"type": "output_text", "text": "Hello"}]
    assert page["data"][-1]["content"] == [{"type": "input_text", "text": "Thanks"}]


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")],
)
def test_bad_pages(app: FastAPI, name: str, query: str, field: str) -> None:
    error = listed(app, name, query)
    assert (error["status"], field in error["error"]["message"]) == (400, True)


def test_there_is_none_of_what_was_not_stored_or_is_anothers(app: FastAPI) -> None:
    gone = post(app, PATH, {"input": "Hi", "store": False}).json()["id"]
    assert listed(app, gone)["error"]["code"] == "response_not_found"
    keyed = create_app(FakeEngine(), ServerSettings(api_keys=("a", "b")))
    mine = post(keyed, PATH, {"input": "Hi"}, headers={"authorization": "Bearer a"}).json()["id"]
    path = f"{PATH}/{mine}/input_items"
    assert get(keyed, path, headers={"authorization": "Bearer a"}).status == 200
    assert get(keyed, path, headers={"authorization": "Bearer b"}).status == 404
