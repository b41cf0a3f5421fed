"""Every route of the app refuses without a key, but a table of open ones, and preflights that are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from octavo.server.absent.openai import Absent
from octavo.server.app import create_app
from octavo.server.cors import CorsRules
from octavo.server.edge import Edge, EdgeRules
from octavo.server.state import ServerSettings
from support.asgi import Reply, call
from support.fake_engine import FakeEngine

OPEN = {(method, path) for method in ("GET", "HEAD") for path in ("/", "/health", "/live", "/ping", "/ready")}
METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PROPFIND",
    "get",
    "X" * 99,
)
ODD = (
    "//", "/health/x", "/health/..", "/health/../metrics", "/healthx", "/HEALTH", "/ready/v1/models", "/docs",
    "/redoc",    "/nothing", "", "*", "/health;x", "/live%2f", "/./health", "/v1", "/static/app.js",
)  # fmt: skip


def locked() -> FastAPI:
    return create_app(FakeEngine(), ServerSettings(api_keys=("k",)))


def routes(app: FastAPI) -> Iterator[str]:
    """The path of every route, with something in the place of its parameters."""
    for route in app.routes:
        assert type(route) in (Route, APIRoute, Absent), "teach this test what it leads to"
        for path in route.paths if isinstance(route, Absent) else [route.path]:
            yield path.replace("{name:path}", "a/b").replace("{name}", "a")


def ask(app: FastAPI, method: str, path: str, **headers: str) -> Reply:
    return asyncio.run(call(app, method, path, b"{}", headers=headers))


def test_every_route_is_known_to_be_open_or_closed() -> None:
    """What an unlocked server answers and a locked one does too is open: the table, and nothing else."""
    app = locked()
    paths = sorted(set(routes(app)))
    assert len(paths) > 15, "the app is whole"
    found = {(method, path) for path in paths for method in METHODS if ask(app, method, path).status != 401}
    assert found == OPEN
    assert all(ask(app, method, path).status == 200 for method, path in OPEN)


@pytest.mark.parametrize("path", ODD)
def test_no_odd_path_is_open(path: str) -> None:
    app = locked()
    # Slashes at the end mean nothing: "//" is "/", and that is open.
    expected = {200} if path == "//" else {401}
    assert {ask(app, method, path).status for method in ("GET", "HEAD")} == expected
    assert {ask(app, method, path).status for method in METHODS[2:]} == {401}


def test_with_the_key_each_is_answered() -> None:
    app = locked()
    for path in set(routes(app)):
        for method in ("GET", "POST"):
            assert ask(app, method, path, authorization="Bearer k").status != 401


PREFLIGHT = {"origin": "http://a.test", "access-control-request-method": "POST"}


@pytest.mark.parametrize("origins", [(), ("http://a.test",), ("http://b.test",)])
def test_of_an_origin_that_is_allowed_the_preflight_is_open_and_nothing_else(
    origins: tuple[str, ...],
) -> None:
    edge = Edge(locked(), EdgeRules(cors=CorsRules.of(origins, (), (), False)))

    async def over_http(scope: Any, receive: Any, send: Any) -> None:
        await edge({**scope, "http_version": "1.1"}, receive, send)

    def status(method: str, path: str) -> int:
        return asyncio.run(call(over_http, method, path, b"{}", headers=PREFLIGHT)).status

    paths = sorted(set(routes(locked())))
    found = {(method, path) for path in paths for method in METHODS if status(method, path) != 401}
    allowed = {("OPTIONS", path) for path in paths} if "http://a.test" in origins else set()
    assert found == OPEN | allowed


def test_open_paths_say_nothing_of_model_or_version() -> None:
    app = locked()
    for method, path in OPEN:
        assert ask(app, method, path).body in (b'{"status":"ok"}', b'{"name":"octavo","api":"/v1"}')
