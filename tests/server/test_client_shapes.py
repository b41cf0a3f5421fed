"""Requests that clients were recorded to send: their service's status, and answers that their types take.

shapes/clients.json.gz is scripts/record_requests.py's, made while make test-clients' programs ran: field
names, types, roles, sizes and nesting, and no text of anybody's. What is expected is written here, by hand.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import ModelInfo
from openai.types import Model
from openai.types.responses import ResponseItemList

from octavo.server.app import create_app
from octavo.server.store import ResponseStore, Stored
from support.asgi import Reply, call
from support.fake_engine import FakeEngine
from support.shapes.reading import adapter, read

SHAPES: list[dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "shapes" / "clients.json.gz").read_bytes())
)
ZEROS = "0" * 32
ITEMS = (f"msg_{ZEROS}", f"fc_{ZEROS}", f"rs_{ZEROS}")
"""Recorded ids are zeros: a response of this one's items is stored, which requests go on from."""
CALLS = [
    item["call_id"]
    for shape in SHAPES
    if shape.get("body", {}).get("previous_response_id") == f"resp_{ZEROS}"
    for item in shape["body"]["input"]
    if item.get("type") == "function_call_output"
]
"""Calls of that response, whose results recorded requests send."""
TALK = 'Let me see.\n<tool_call>{"name": "echo", "arguments": {"text": "a"}}</tool_call>'
READS = {
    "/v1/chat/completions": "openai chat",
    "/v1/responses": "openai response",
    "/v1/messages": "anthropic",
    "/v1/embeddings": "openai vectors",
    "/v1/messages/count_tokens": "anthropic tokens",
    "/v1/responses/input_tokens": "openai input tokens",
}
"""Which of support.shapes.reading's types answers of a path must pass."""


def expected(shape: dict[str, Any]) -> int:
    """What the client's own service answers."""
    body, path = shape.get("body", {}), shape["path"]
    if "resp_" in path:
        return 404  # stored elsewhere
    if body.get("model", "agent") != "agent":
        return 404
    wrong = body.get("temperature") == 200 or body.get("max_tokens") == -1
    return 400 if wrong or "thread" in body else 200  # threads: see test_client_requests


def app_of(reply: str) -> Any:
    app = create_app(FakeEngine(reply=reply, served_model_name="agent", max_model_len=1 << 20))
    store = ResponseStore()
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    made = {"type": "function_call", "call_id": "call_0", "name": "echo", "arguments": "{}"}
    output = [{**text, "id": ITEMS[0]}, {**made, "id": ITEMS[1]}, {"type": "reasoning", "id": ITEMS[2]}]
    echo = {"type": "function", "function": {"name": "echo", "arguments": "{}"}}
    answer = {"role": "assistant", "content": "Hi", "tool_calls": [{"id": name, **echo} for name in CALLS]}
    turn = [{"role": "user", "content": "Hi"}, answer]
    body = json.dumps({"output": output}).encode()
    store.put("", f"resp_{ZEROS}", Stored(json.dumps(turn).encode(), body, ITEMS))
    app.state.octavo.kept["responses"] = store
    return app


def parse(shape: dict[str, Any], reply: Reply) -> None:
    """Whatever the client's types do not take raises."""
    path, headers = shape["path"], shape["headers"]
    if path.startswith("/v1/models"):
        kind: Any = ModelInfo if "anthropic-version" in headers else Model
        found = reply.json()
        for each in found.get("data", [found]):
            adapter(kind).validate_python(each)
        return
    if path.endswith("/input_items"):
        adapter(ResponseItemList).validate_python(reply.json())
        return
    read(READS[path], reply)


STREAMS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


def turned(shape: dict[str, Any]) -> dict[str, Any]:
    """The same request, its answer whole where it was streamed, and streamed where it was whole."""
    body = {key: value for key, value in shape["body"].items() if key != "stream_options"}
    return {**shape, "body": {**body, "stream": not body.get("stream", False)}}


TURNED = [turned(shape) for shape in SHAPES if shape["path"] in STREAMS]


@pytest.mark.parametrize("shapes", [SHAPES, TURNED], ids=["as recorded", "turned"])
@pytest.mark.parametrize("reply", ["Hello", TALK], ids=["a text", "a call"])
def test_every_shape_gets_what_its_service_answers(shapes: list[dict[str, Any]], reply: str) -> None:
    app = app_of(reply)
    wrong = []
    for shape in shapes:
        found = asyncio.run(
            call(app, shape["method"], shape["path"], shape.get("body"), headers=dict(shape["headers"]))
        )
        if found.status != expected(shape):
            wrong.append((shape["headers"].get("user-agent"), shape["path"], found.body[:300]))
        elif found.status == 200:
            parse(shape, found)
    assert wrong == []


def test_they_are_many_and_of_many() -> None:
    agents = Counter(shape["headers"].get("user-agent", "").partition("/")[0] for shape in SHAPES)
    assert 2 * len(SHAPES + TURNED) >= 500
    assert len([name for name, count in agents.items() if count >= 3]) >= 12
    asked = Counter(expected(shape) for shape in SHAPES)
    assert asked[200] > 0.8 * len(SHAPES)
    assert asked[400]
    assert asked[404]


def test_nobodys_texts_are_in_there() -> None:
    def texts(value: Any, name: str = "") -> list[tuple[str, str]]:
        if isinstance(value, dict):
            return [pair for key, member in value.items() for pair in texts(member, key)]
        if isinstance(value, list):
            return [pair for member in value for pair in texts(member, name)]
        return [(name, value)] if isinstance(value, str) else []

    said = {text for shape in SHAPES for name, text in texts(shape.get("body")) if name != "arguments"}
    prose = {text for text in said if " " in text}
    assert prose
    assert all(("lorem ipsum " * (len(text) // 12 + 1)).startswith(text) for text in prose)
