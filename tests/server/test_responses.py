"""/v1/responses: items, events that add up, and conversations that go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from octavo.server.store import ResponseStore, Stored
from support.asgi import Reply, call, get, post
from support.fake_engine import FakeEngine

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "now", "parameters": {"type": "object"}}]
CALL = 'Let me see.\n<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'


def events(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    found = []
    for block in reply.body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_text_answer(app: FastAPI, engine: FakeEngine) -> None:
    body = post(app, PATH, {"input": "Hi", "instructions": "Be kind.", "max_output_tokens": 50}).json()
    assert body["object"] == "response"
    assert body["status"] == "completed"
    (item,) = body["output"]
    assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", "Hello")
    assert body["usage"]["output_tokens"] == 6
    prompt = bytes(engine.calls[0].prompt).decode()
    assert prompt == "system:Be kind.\nuser:Hi\nassistant:"
    assert engine.calls[0].params.max_tokens == 50


def test_cut_answers_are_incomplete(app: FastAPI) -> None:
    body = post(app, PATH, {"input": "Hi", "max_output_tokens": 2}).json()
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in body["output"]] == ["incomplete"]
    found = events(post(app, PATH, {"input": "Hi", "max_output_tokens": 2, "stream": True}))
    (done,) = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert (done["status"], [done]) == ("incomplete", found[-1]["response"]["output"])
    assert done["content"] == body["output"][0]["content"]


def test_a_forced_call_that_was_cut_off_is_incomplete(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = '[{"name": "now", "arguments": {"a": 1}}]'
    wanted = {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 33}
    body = post(app, PATH, {"input": "Hi", **wanted}).json()
    (item,) = body["output"]
    assert (body["status"], item["status"]) == ("incomplete", "incomplete")
    assert (item["name"], item["arguments"]) == ("now", '{"a')
    done = events(post(app, PATH, {"input": "Hi", "stream": True, **wanted}))[-1]["response"]
    assert (done["status"], done["output"][0]["arguments"]) == ("incomplete", '{"a')
    engine.reply = "Go on"  # what was cut is no JSON, and templates read calls as such
    assert post(app, PATH, {"input": "And?", "previous_response_id": body["id"]}).status == 200


def test_events_add_up_to_the_whole(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = CALL
    whole = post(app, PATH, {"input": "Hi", "tools": TOOLS}).json()
    found = events(post(app, PATH, {"input": "Hi", "tools": TOOLS, "stream": True}))
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    kinds = [e["type"] for e in found]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    text = "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta")
    assert text == "Let me see." == whole["output"][0]["content"][0]["text"]
    arguments = [e["delta"] for e in found if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(arguments) == whole["output"][1]["arguments"] == '{"a": 1}'
    done = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert done == found[-1]["response"]["output"]
    opened = kinds.count("response.output_item.added")
    assert opened == len(done) == 2
    assert {e["item_id"] for e in found if "item_id" in e} == {item["id"] for item in done}


def test_a_conversation_goes_on(app: FastAPI, engine: FakeEngine) -> None:
    first = post(app, PATH, {"input": "Hi", "instructions": "One."}).json()
    body = {"input": "And?", "previous_response_id": first["id"], "instructions": "Two."}
    assert post(app, PATH, body).json()["previous_response_id"] == first["id"]
    assert bytes(engine.calls[1].prompt).decode() == (
        "system:Two.\nuser:Hi\nassistant:Hello\nuser:And?\nassistant:"
    )
    assert get(app, f"{PATH}/{first['id']}").json() == first


def test_calls_and_their_results_become_messages(app: FastAPI, engine: FakeEngine) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "When?"}]},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "noon"},
    ]
    assert post(app, PATH, {"input": items}).status == 200
    assert bytes(engine.calls[0].prompt).decode() == "user:When?\nassistant:\ntool:noon\nassistant:"


def test_unstored_and_deleted_responses_are_gone(app: FastAPI) -> None:
    name = post(app, PATH, {"input": "Hi", "store": False}).json()["id"]
    assert get(app, f"{PATH}/{name}").status == 404
    name = post(app, PATH, {"input": "Hi"}).json()["id"]
    import asyncio

    assert asyncio.run(call(app, "DELETE", f"{PATH}/{name}")).json()["deleted"] is True
    reply = post(app, PATH, {"input": "Hi", "previous_response_id": name})
    assert (reply.status, reply.error["param"]) == (404, "previous_response_id")


def test_one_key_does_not_see_anothers(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(api_keys=("a", "b")))
    mine, other = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
    name = post(app, PATH, {"input": "Hi"}, headers=mine).json()["id"]
    assert get(app, f"{PATH}/{name}", headers=mine).status == 200
    assert get(app, f"{PATH}/{name}", headers=other).status == 404


def test_the_store_is_bounded() -> None:
    store = ResponseStore(most=3, most_bytes=100)
    for i in range(5):
        store.put("", str(i), Stored(b"[]", b"{}" * 4))
    assert len(store) == 3
    store.put("", "large", Stored(b"[]", b"." * 88))
    assert store.nbytes <= 100
    assert store.get("", "large") is not None
    store.put("", "huge", Stored(b"[]", b"." * 998))
    assert (len(store), store.nbytes) == (0, 0)


def test_json_schema_reaches_the_engine(app: FastAPI, engine: FakeEngine) -> None:
    schema = {"type": "object", "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    assert post(app, PATH, {"input": "Hi", "text": text}).status == 200
    wanted = engine.calls[0].params.structured_outputs
    assert wanted is not None
    assert wanted.json == schema


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"input": []}, "input", "non-empty"),
        ({"input": 5}, "input", "string"),
        ({"input": [{"type": "computer_call"}]}, "input", "computer_call"),
        ({"input": [{"role": "user", "content": "a", "x": 1}]}, "input", "unknown field input[0].x"),
        ({"tools": [{"type": "computer_use_preview"}]}, "tools", "computer_use_preview"),
        ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
        ({"text": {"format": {"type": "x"}}}, "text", "type must be"),
        ({"background": True}, "background", "not supported"),
        ({"reasoning": {"effort": 5}}, "reasoning", "a word such as"),
        ({"include": ["message.output_text.logprobs"]}, "include", "log-probabilities"),
        ({"top_logprobs": 2}, "top_logprobs", "not supported"),
        ({"temperature": 1000}, "temperature", "at most"),
        ({"wat": 1}, "wat", "unknown field"),
    ],
)
def test_bad_requests_name_the_field(app: FastAPI, fields: dict[str, Any], param: str, text: str) -> None:
    reply = post(app, PATH, {"input": "Hi", **fields})
    assert reply.status == 400
    assert reply.error["param"] == param
    assert text in reply.error["message"]


def test_an_answer_may_be_sent_back_as_it_came(app: FastAPI) -> None:
    first = post(app, PATH, {"input": "Hi"}).json()
    again = [{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "And?"}]
    assert post(app, PATH, {"input": again}).status == 200
