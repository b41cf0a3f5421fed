"""Anthropic's /v1/messages over the same engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import post
from support.fake_engine import FakeEngine

PATH = "/v1/messages"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
TOOLS = [{"name": "now", "description": "The time", "input_schema": {"type": "object"}}]
CALL = 'Let me see.\n<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'


def test_a_text_answer(app: FastAPI, engine: FakeEngine) -> None:
    body = post(app, PATH, {**HI, "system": "Be kind.", "stop_sequences": ["x"], "top_k": 3}).json()
    assert (body["type"], body["role"]) == ("message", "assistant")
    assert body["content"] == [{"type": "text", "text": "Hello", "citations": None}]
    assert body["stop_reason"] == "end_turn"
    usage = body["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(engine.calls[0].prompt)
    assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    assert (usage["server_tool_use"], usage["service_tier"]) == (None, "standard")
    assert body["id"].startswith("msg_")
    assert bytes(engine.calls[0].prompt).decode() == "system:Be kind.\nuser:Hi\nassistant:"
    assert engine.calls[0].params.stop == ("x",)
    assert engine.calls[0].params.top_k == 3


def test_events_add_up_to_the_whole(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply, engine.template = "<think>Hm.</think>" + CALL, "</think>"
    whole = post(app, PATH, {**HI, "tools": TOOLS}).json()
    assert [b["type"] for b in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["stop_reason"] == "tool_use"
    blocks: list[dict[str, Any]] = []
    reply = post(app, PATH, {**HI, "tools": TOOLS, "stream": True})
    found = [json.loads(b.split("data: ")[1]) for b in reply.body.decode().split("\n\n")[:-1]]
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            block["text"] = block.get("text", "") + delta.get("text", "")
            block["thinking"] = block.get("thinking", "") + delta.get("thinking", "")
            block["json"] += delta.get("partial_json", "")
    assert blocks[0]["thinking"] == whole["content"][0]["thinking"] == "Hm."
    assert blocks[1]["text"] == whole["content"][1]["text"] == "Let me see."
    assert json.loads(blocks[2]["json"]) == whole["content"][2]["input"] == {"a": 1}
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    end, started = found[-2], found[0]["message"]
    assert end["delta"]["stop_reason"] == "tool_use"
    assert blocks[2]["caller"] == whole["content"][2]["caller"] == {"type": "direct"}
    for each in (whole, started, end["delta"]):
        assert (each["stop_details"], each["container"]) == (None, None)
    assert set(started) == set(whole)
    assert set(started["usage"]) == set(whole["usage"])
    assert {name: whole["usage"][name] for name in end["usage"]} == end["usage"]


def test_blocks_become_messages(app: FastAPI, engine: FakeEngine) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "When?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "now", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "noon"}]},
    ]
    assert post(app, PATH, {**HI, "messages": messages}).status == 200
    assert bytes(engine.calls[0].prompt).decode() == "user:When?\nassistant:\ntool:noon\nassistant:"


def test_a_last_assistant_message_is_continued(app: FastAPI, engine: FakeEngine) -> None:
    messages = [*HI["messages"], {"role": "assistant", "content": "The answer is ("}]
    post(app, PATH, {**HI, "messages": messages})
    assert engine.rendered[0]["continue"] is True


def test_any_tool_is_forced_by_a_grammar(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = '[{"name": "now", "arguments": {}}]'
    body = post(app, PATH, {**HI, "tools": TOOLS, "tool_choice": {"type": "any"}}).json()
    assert engine.calls[0].params.structured_outputs is not None
    assert body["content"][0]["name"] == "now"
    assert body["stop_reason"] == "tool_use"


def test_a_forced_call_that_is_cut_has_no_input_yet(app: FastAPI, engine: FakeEngine) -> None:
    """Which must be an object; a stream says what was written of it."""
    engine.reply = '[{"name": "now", "arguments": {"a": 1}}]'
    wanted = {**HI, "tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 33}
    body = post(app, PATH, wanted).json()
    assert (body["content"][0]["name"], body["content"][0]["input"]) == ("now", {})
    assert body["stop_reason"] == "max_tokens"
    assert b'"partial_json":"{\\"a"' in post(app, PATH, wanted | {"stream": True}).body


def test_its_clients_send_the_key_in_a_header_of_their_own(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(api_keys=("secret",)))
    reply = post(app, PATH, HI)
    assert (reply.status, "x-api-key: KEY" in reply.error["message"]) == (401, True)
    assert post(app, PATH, HI, headers={"x-api-key": "secret"}).status == 200


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"messages": []}, "non-empty"),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "unknown field messages[0].x"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
            "content[0].x",
        ),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text must be a string",
        ),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name must be 1 to 128 letters"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "input_schema"),
        ({"temperature": -1}, "temperature"),
        ({"thinking": 5}, "thinking must be an object"),
    ],
)
def test_bad_requests_are_refused_in_its_words(app: FastAPI, fields: dict[str, Any], text: str) -> None:
    reply = post(app, PATH, {**HI, **fields})
    assert reply.status == 400
    assert reply.json()["type"] == "error"
    assert reply.error["type"] == "invalid_request_error"
    assert text in reply.error["message"]
