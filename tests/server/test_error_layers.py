"""Whatever refuses a request, edge, limits, router or endpoint: each API's own shape, and an id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.server.app import create_app
from octavo.server.edge import Edge, EdgeRules
from octavo.server.state import ServerSettings
from support.asgi import Reply, call
from support.fake_engine import FakeEngine

HI = [{"role": "user", "content": "Hi"}]
APIS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": HI}, "x-request-id"),
    "/v1/completions": ({"prompt": "Hi"}, "x-request-id"),
    "/v1/responses": ({"input": "Hi"}, "x-request-id"),
    "/v1/embeddings": ({"input": "Hi"}, "x-request-id"),
    "/v1/messages": ({"messages": HI, "max_tokens": 9}, "request-id"),
}
KEY = {"authorization": "Bearer k"}
LAYERS: dict[str, tuple[int, dict[str, Any]]] = {
    "a foreign host": (403, {"headers": {"host": "evil.example"}}),
    "a page of another site": (403, {"headers": {"host": "localhost", "origin": "http://evil.example"}}),
    "a form": (415, {"headers": {"content-type": "text/plain"}}),
    "a packed body": (415, {"headers": {"content-encoding": "gzip"}}),
    "no key": (401, {"headers": {"authorization": ""}}),
    "another method": (405, {"method": "PUT"}),
    "a path below": (404, {"below": "/nothing/at/all"}),
    "too large": (413, {"settings": {"max_body_bytes": 5}}),
    "too many": (429, {"settings": {"max_concurrent_requests": 0}}),
    "loading": (503, {"engine": None}),
    "no JSON": (400, {"body": b"{"}),
    "no object": (400, {"body": b"[]"}),
    "an unknown field": (400, {"more": {"wat": 1}}),
    "another model": (404, {"more": {"model": "wat"}}),
    "an engine that refuses": (500, {"engine": FakeEngine(refuse=ValueError("SECRET"))}),
}


def refused(path: str, how: dict[str, Any]) -> Reply:
    settings = ServerSettings(**{"api_keys": ("k",), **how.get("settings", {})})
    app = create_app(how.get("engine", FakeEngine()), settings)
    edge = Edge(app, EdgeRules(hosts=frozenset()))

    async def over_http(scope: Any, receive: Any, send: Any) -> None:
        await edge(scope, receive, send)

    headers = {"host": "localhost", **KEY, **how.get("headers", {})}
    body = how.get("body", APIS[path][0] | how.get("more", {}))
    method = how.get("method", "POST")
    return asyncio.run(call(over_http, method, path + how.get("below", ""), body, headers=headers))


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_speaks_the_apis_words(path: str, layer: str) -> None:
    status, how = LAYERS[layer]
    reply = refused(path, how)
    assert reply.status == status, reply.body
    body = reply.json()
    if path == "/v1/messages":
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "SECRET" not in reply.body.decode()
    name = reply.headers[APIS[path][1]]
    assert name.startswith(("req_", "chatcmpl-", "cmpl-", "resp_", "embd-", "msg_"))
    again = refused(path, how | {"headers": {**how.get("headers", {}), "x-request-id": "mine-1"}})
    assert again.headers["x-request-id"] == "mine-1"
