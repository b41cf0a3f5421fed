"""APIs that are not here answer with one line that says what there is instead, in their clients' words."""

from __future__ import annotations

import asyncio
import re

import pytest
from fastapi import FastAPI

from octavo.server import apis
from octavo.server.absent import ollama, openai
from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import Reply, call, get, post
from support.fake_engine import FakeEngine

PATHS = [path.replace("{name:path}", "a/b").replace("{name}", "a") for path in openai.INSTEAD]
OTHER_NAMES = re.compile(r"/(?:v1/)?[a-z_]+(?:/[a-z_]+)*")


def ask(app: FastAPI, method: str, path: str) -> Reply:
    return asyncio.run(call(app, method, path, {}))


@pytest.mark.parametrize("path", PATHS)
def test_what_there_is_instead(app: FastAPI, path: str) -> None:
    for method in ("GET", "POST"):
        reply = ask(app, method, path)
        assert reply.status == 404
        assert reply.error["code"] == "not_supported"
        message = reply.error["message"]
        assert message.startswith(f"there is no {path}: ")
        assert "\n" not in message
        assert reply.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("name", [*ollama.INSTEAD, "", "blobs/sha256:1", "nothing"])
def test_ollamas_clients_read_a_text(app: FastAPI, name: str) -> None:
    for method in ollama.METHODS:
        reply = ask(app, method, f"/api/{name}" if name else "/api")
        assert reply.status == 404
        if method != "HEAD":
            (error,) = reply.json().values()
            assert error.startswith("Ollama's API is not served (/api")
    assert ask(app, "POST", "/api/chat").json()["error"].endswith("POST /v1/chat/completions answers")


def test_the_paths_that_are_named_are_served(app: FastAPI) -> None:
    served = {path for each in apis.find() for _, path in each.routes if "absent" not in each.file}
    for text in (*openai.INSTEAD.values(), *ollama.INSTEAD.values()):
        for path in re.findall(r"(?<![\w.])/[a-z0-9_/]+", text):
            assert path in served, text


def test_they_take_no_other_path() -> None:
    """A route of these that stood before a real one would hide it."""
    app = create_app(FakeEngine())
    assert post(app, "/v1/responses/input_tokens", {"input": "Hi"}).status == 200
    assert get(app, "/v1/responses/compacted").error["code"] == "response_not_found"
    assert get(app, "/v1/models").status == 200


def test_one_route_stands_for_all_of_openais(app: FastAPI) -> None:
    """Each request is held against routes one after the other; these are counted by their own names."""
    assert [type(route) for route in app.routes].count(openai.Absent) == 1
    assert ask(app, "OPTIONS", "/v1/files/a/b").error["code"] == "not_supported"
    counted = 'octavo_http_requests_total{method="OPTIONS",path="/v1/files/{name:path}",status="404"} 1.0'
    assert counted in get(app, "/metrics").body.decode()


def test_keys_come_first_and_each_says_so_in_its_words() -> None:
    app = create_app(FakeEngine(), ServerSettings(api_keys=("k",)))
    assert post(app, "/rerank", {}).error["code"] == "invalid_api_key"
    assert isinstance(post(app, "/api/chat", {}).json()["error"], str)
    assert post(app, "/api/chat", {}).status == 401


def test_they_stand_in_no_description(app: FastAPI) -> None:
    document = get(app, "/openapi.json").json()
    assert not {path for path in document["paths"] if path in openai.INSTEAD or path.startswith("/api")}
