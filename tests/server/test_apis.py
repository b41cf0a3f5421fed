"""APIs are found in folders of the server, and each speaks its own errors, those of the limits too."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from octavo import server
from octavo.server import apis
from octavo.server.apis import Rules
from octavo.server.app import attach, create_app
from octavo.server.errors import OPENAI, to_api_error
from octavo.server.state import ServerSettings
from support.asgi import Reply, call, get, post
from support.fake_engine import FakeEngine
from support.lines import calls_of

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = "/v1/messages"
OPEN = ["/", "/health", "/live", "/ping", "/ready"]

SHOUT = """
import json

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from octavo.errors import InvalidRequestError
from octavo.server.errors import Dialect
from octavo.server.apis import Rules
from octavo.server.sse import EventStream
from octavo.server.whole import Answer


def _body(error):
    return json.dumps({"shout": str(error).upper(), "field": error.param}).encode()


router = APIRouter()
dialect = Dialect(_body, lambda error: b"event: no\\ndata: " + _body(error) + b"\\n\\n", b"event: yes\\n\\n",
                  {"prompt": "words"})
rules = {"/shout/about": Rules(keyed=False), "/shout/watch": Rules(counted=frozenset({"GET"})),
         "/shout/files/{name:path}": Rules(keyed=False)}


class Body(BaseModel):
    count: int


@router.post("/shout")
async def shout(body: Body) -> int:
    return body.count


@router.post("/shout/{how}")
async def fail(how: str):
    async def events():
        yield b"data: one\\n\\n"
        if how == "stream":
            raise InvalidRequestError("prompt is wrong", "prompt")

    async def answer():
        raise ValueError("a secret")

    match how:
        case "invalid":
            raise InvalidRequestError("prompt is wrong", "prompt")
        case "http":
            raise HTTPException(418, "a teapot")
        case "bug":
            raise ValueError("a secret")
        case "answer":
            return Answer(answer, {}, dialect)
    return EventStream(events(), {}, dialect)


@router.get("/shout/about")
async def about() -> str:
    return "open"


@router.get("/shout/watch")
async def watch() -> str:
    return "counted"


@router.get("/shout/files/{name:path}")
async def file(name: str) -> str:
    return name
"""

CLAIM = """
from octavo.server.claims import Claim
claims = {{"{}": Claim("words", shout, dialect)}}
"""
GOT = """
from fastapi import APIRouter
router = APIRouter()

@router.get("/shout")
async def f() -> str:
    return "got"
"""

Drop = Callable[..., None]


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drop]:
    """Puts files into an API's folder that stands somewhere else."""
    before = set(sys.modules)
    monkeypatch.setattr(server, "__path__", [*server.__path__, str(tmp_path)])

    def put(name: str, **files: str) -> None:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for file, text in {"__init__": "", **files}.items():
            (folder / f"{file}.py").write_text(text)

    yield put
    for module in set(sys.modules) - before:
        if (getattr(sys.modules[module], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[module]
            monkeypatch.delattr(server, module.split(".")[2], raising=False)


@pytest.fixture
def shouting(drop: Drop) -> Callable[..., FastAPI]:
    drop("loud", shout=SHOUT)
    return lambda engine=None, **settings: create_app(engine or FakeEngine(), ServerSettings(**settings))


def shape(reply: Reply, status: int, text: str) -> None:
    """An error in the words of SHOUT."""
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert body.keys() == {"shout", "field"}
    assert text.upper() in body["shout"]


def test_patterns_come_last_so_that_a_chat_is_held_against_few_routes(
    shouting: Callable[..., FastAPI],
) -> None:
    paths = [getattr(route, "path", None) for route in shouting().routes]
    several = paths.index(None)
    assert not any("{" in path for path in paths[:several])
    assert all("{" in path for path in paths[several + 1 :])
    assert "/shout/about" in paths[:several]
    assert "/shout/{how}" in paths[several:]
    assert paths.index("/v1/chat/completions") < 6


def test_a_start_builds_the_validators_of_chats_and_completions_alone() -> None:
    code = """
from octavo.server.app import create_app
from octavo.server.openai.body import Strict
create_app(None)
waiting, built = [Strict], []
while waiting:
    each = waiting.pop()
    waiting += each.__subclasses__()
    built += [each.__name__] if each.__pydantic_complete__ else []
print(sorted(built))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['ChatRequest', 'CompletionRequest']"


def test_a_file_in_a_folder_is_served(shouting: Callable[..., FastAPI]) -> None:
    app = shouting()
    assert post(app, "/shout", {"count": 3}).json() == 3
    assert post(app, "/v1/completions", {"prompt": "a"}).status == 200


def test_the_doors_speak_its_errors(shouting: Callable[..., FastAPI]) -> None:
    locked = shouting(api_keys=("k",))
    shape(post(locked, "/shout", {"count": 3}), 401, "API key")
    assert post(locked, "/shout", {"count": 3}).headers["www-authenticate"] == "Bearer"
    shape(get(locked, "/shout/nothing/here"), 401, "API key")
    shape(post(shouting(max_body_bytes=3), "/shout", {"count": 3}), 413, "larger than 3 bytes")
    crowd = post(shouting(max_concurrent_requests=0), "/shout", {"count": 3})
    shape(crowd, 429, "0 requests are in flight")
    assert crowd.headers["retry-after"] == "1"
    loading = create_app(None)
    shape(post(loading, "/shout", {"count": 3}), 503, "still loading")
    attach(loading, FakeEngine())
    assert post(loading, "/shout", {"count": 3}).status == 200
    loading.state.octavo.draining = True
    shape(post(loading, "/shout", {"count": 3}), 503, "shutting down")


def test_a_slow_body_is_told_so_in_its_words(shouting: Callable[..., FastAPI]) -> None:
    app = shouting(body_timeout_s=0.01)
    sent: list[Any] = []

    async def receive() -> dict[str, object]:
        await asyncio.sleep(60)
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/shout", "headers": []}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408
    assert "shout" in json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/shout", None, 405, "/shout does not take GET"),
        ("GET", "/shout/nothing/here", None, 404, "there is no path '/shout/nothing/here'"),
        ("POST", "/shout/", {"count": "many"}, 400, "count: "),
        ("POST", "/shout", b"{", 400, "json"),
        ("POST", "/shout", {}, 400, "count: field required"),
        ("POST", "/shout/invalid", {}, 400, "words is wrong"),
        ("POST", "/shout/http", {}, 418, "a teapot"),
        ("POST", "/shout/bug", {}, 500, "internal error (reference"),
        ("POST", "/shout/answer", {}, 500, "internal error (reference"),
    ],
)
def test_validation_and_handlers_speak_its_errors(
    shouting: Callable[..., FastAPI], method: str, path: str, body: object, status: int, text: str
) -> None:
    reply = asyncio.run(call(shouting(), method, path, body))
    shape(reply, status, text)
    assert b"SECRET" not in reply.body.upper()


def test_its_streams_end_in_its_words(shouting: Callable[..., FastAPI]) -> None:
    app = shouting()
    assert post(app, "/shout/well", {}).body == b"data: one\n\nevent: yes\n\n"
    failed = post(app, "/shout/stream", {}).body
    assert failed == b'data: one\n\nevent: no\ndata: {"shout": "WORDS IS WRONG", "field": "words"}\n\n'


def test_others_keep_theirs(shouting: Callable[..., FastAPI]) -> None:
    app = shouting(api_keys=("k",))
    for path in ("/v1/chat/completions", "/shouting", "/live", "/nothing", "/metrics"):
        assert post(app, path, {}).error["code"] == "invalid_api_key"
    anthropic = {"type": "authentication_error", "message": post(app, "/nothing", {}).error["message"]}
    assert post(app, MESSAGES, {}).json() == {"type": "error", "error": anthropic}


def test_rules_open_and_count_what_they_say(shouting: Callable[..., FastAPI]) -> None:
    app = shouting(api_keys=("k",), max_concurrent_requests=0)
    key = {"authorization": "Bearer k"}
    assert get(app, "/shout/about").status == 200
    assert get(app, "/shout/files/a/b.js").json() == "a/b.js"
    assert get(app, "/shout/files").status == 401
    assert get(app, "/shout/about/more").status == 401
    assert get(app, "/shout/watch").status == 401
    shape(asyncio.run(call(app, "GET", "/shout/watch", headers=key)), 429, "in flight")
    assert get(app, "/v1/models", headers=key).status == 200


def test_a_folder_brings_a_dialect_for_its_files(drop: Drop) -> None:
    plain = (
        "from fastapi import APIRouter\nrouter = APIRouter()\n@router.get('/{0}')\ndef f(): return '{0}'\n"
    )
    shared = "from octavo.server.errors import Dialect\ndialect = Dialect(lambda _: b'1', lambda _: b'1')\n"
    drop("quiet", __init__=shared, one=plain.format("one"), two=plain.format("two"), _not="1 / 0")
    app = create_app(FakeEngine())
    assert get(app, "/one").json() == "one"
    assert [post(app, path, {}).body for path in ("/one", "/two")] == [b"1", b"1"]


def test_a_file_that_is_got_from_leaves_the_dialect_to_another(drop: Drop) -> None:
    drop("loud", shout=SHOUT)
    drop("calm", got=GOT)  # is found before it
    app = create_app(FakeEngine(), ServerSettings(max_body_bytes=1))
    assert get(app, "/shout").json() == "got"
    shape(post(app, "/shout", {"count": 3}), 413, "larger than 1")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"a": "import nothing_of_the_kind"}, "loud.a cannot be imported: ModuleNotFoundError"),
        ({"a": "def f(:"}, "loud.a cannot be imported: SyntaxError"),
        ({"__init__": "1 / 0"}, "loud cannot be imported: ZeroDivisionError"),
        ({"a": "router = 3"}, "loud.a: router is no APIRouter, but int"),
        ({"a": SHOUT + "\ndialect = 'loud'"}, "loud.a: dialect is no Dialect, but str"),
        ({"a": SHOUT + "\nrules = {'/shout': 1}"}, "loud.a: rules['/shout'] is no Rules, but int"),
        ({"a": SHOUT + "\nrules = {'/x': Rules()}"}, "loud.a has rules for '/x', which it does not serve"),
        ({"a": SHOUT + "\nclaims = {'/shout': 1}"}, "loud.a: claims['/shout'] is no Claim, but int"),
        ({"a": SHOUT + CLAIM.format("/x")}, "loud.a claims '/x', which nobody serves"),
        ({"a": SHOUT + CLAIM.format("/tokenize")}, "two files claim /tokenize"),
        ({"a": SHOUT, "b": SHOUT}, "two files serve POST /shout: loud.a and loud.b"),
        (
            {"a": SHOUT, "b": SHOUT.replace(".post(", ".put(").replace(".get(", ".patch(")},
            "/shout is served in two dialects: by loud.a and by loud.b",
        ),
        (
            {"a": SHOUT.replace('"/shout"', '"/v1/messages"', 1)},
            "two files serve POST /v1/messages: anthropic",
        ),
    ],
)
def test_what_cannot_be_served_is_named_in_one_line(drop: Drop, files: dict[str, str], text: str) -> None:
    drop("loud", **files)
    with pytest.raises(apis.EndpointError, match=re.escape(text)) as caught:
        create_app(FakeEngine())
    assert "\n" not in str(caught.value)


def test_the_example_of_the_documentation(drop: Drop) -> None:
    page = (ROOT / "docs" / "how-to" / "add-an-api.md").read_text(encoding="utf-8")
    drop("echo", say=page.split("```python\n")[1].split("```")[0])
    app = create_app(FakeEngine(), ServerSettings(api_keys=("k",)))
    key = {"authorization": "Bearer k"}
    assert get(app, "/echo/about").json() == "counts tokens"
    assert post(app, "/echo", b"abc", headers=key).json() == {"tokens": 3}
    assert post(app, "/echo", b"", headers=key).json()["error"] == "the body is empty"
    assert post(app, "/echo", b"abc").json()["error_type"] == "invalid_api_key"


def test_what_is_served_has_one_table() -> None:
    paths = {each.path: each for each in apis.table(apis.find()).values()}
    assert sorted(path for path, each in paths.items() if not each.rules.keyed) == OPEN
    assert {path for path, each in paths.items() if each.rules.batched} == {
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", MESSAGES
    }  # fmt: skip
    assert all(each.rules.counted == Rules().counted for each in paths.values())
    assert {path for path, each in paths.items() if each.dialect is not OPENAI} == {
        "/v1/responses", "/v1/responses/input_tokens", "/v1/responses/{name}",
        "/v1/responses/{name}/input_items", MESSAGES, MESSAGES + "/count_tokens", "/api", "/api/{name:path}",
        "/", "/generate", "/generate_stream", "/invocations", "/info", "/chat_tokenize",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "settings", "status", "kind"),
    [
        ("POST", MESSAGES, {"api_keys": ("k",)}, 401, "authentication_error"),
        ("GET", MESSAGES, {}, 405, "invalid_request_error"),
        ("POST", MESSAGES + "/batches", {}, 404, "not_found_error"),
        ("POST", MESSAGES, {"max_body_bytes": 1}, 413, "request_too_large"),
        ("POST", MESSAGES, {"max_concurrent_requests": 0}, 429, "rate_limit_error"),
        ("POST", MESSAGES, None, 503, "overloaded_error"),
    ],
)
def test_anthropics_shape_from_the_doors(
    method: str, path: str, settings: dict[str, Any] | None, status: int, kind: str
) -> None:
    engine = None if settings is None else FakeEngine()
    reply = asyncio.run(call(create_app(engine, ServerSettings(**settings or {})), method, path, {}))
    assert reply.status == status
    body = reply.json()
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == kind


@pytest.mark.parametrize(
    ("path", "above"),
    [("/a/x", "/a"), ("/a/b/x/y", "/a/b"), ("/a/bc", "/a"), ("/a/b/", "/a/b"), ("/ab", None), ("x", None)],
)
def test_an_unknown_path_has_the_dialect_of_the_longest_one_it_continues(
    path: str, above: str | None
) -> None:
    dialects = {known: replace(OPENAI) for known in ("/a", "/a/b", "/x")}
    table = apis.Paths(apis.Path(known, dialect) for known, dialect in dialects.items())
    assert table[path].dialect is (OPENAI if above is None else dialects[above])
    assert table[path].rules == Rules()


def test_a_path_of_many_parts_takes_no_more_work_than_a_short_one() -> None:
    """It is looked up before its key is, so anybody may send it."""
    table = apis.table(apis.find())

    def calls(path: str) -> int:
        return calls_of(lambda: table[path], built_in=True)

    assert 0 < calls("/" * 4) == calls("/" * 4000)


def test_openais_words_are_as_they_were() -> None:
    error = to_api_error(ValueError("x"))
    body = json.loads(OPENAI.body(error))["error"]
    assert list(body) == ["message", "type", "param", "code"]
    assert OPENAI.last_event(error) == b"data: " + OPENAI.body(error) + b"\n\ndata: [DONE]\n\n"
