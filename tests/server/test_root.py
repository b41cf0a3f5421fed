"""GET /: a word for programs, a page for people."""

from __future__ import annotations

import asyncio
import re

from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import Reply, call, get
from support.fake_engine import FakeEngine

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def ask(app: FastAPI, accept: str, method: str = "GET") -> Reply:
    return asyncio.run(call(app, method, "/", headers={"accept": accept}))


def test_a_browser_gets_a_page_whose_links_lead_somewhere(app: FastAPI) -> None:
    reply = ask(app, BROWSER)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = re.findall(r'href="([^"]+)"', reply.body.decode())
    assert len(links) >= 5
    for link in links:
        assert get(app, f"/{link}").status == 200
    assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_programs_get_json(app: FastAPI) -> None:
    for accept in ("*/*", "application/json", ""):
        reply = ask(app, accept)
        assert reply.json() == {"name": "octavo", "api": "/v1"}
        assert reply.headers["vary"] == "accept"
    assert get(app, "/").json() == {"name": "octavo", "api": "/v1"}


def test_the_page_is_open_and_says_neither_model_nor_version() -> None:
    reply = ask(create_app(FakeEngine(), ServerSettings(api_keys=("k",))), BROWSER)
    assert reply.status == 200
    assert b"fake" not in reply.body
    assert not re.search(rb"\d+\.\d+", reply.body)
