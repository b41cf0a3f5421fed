"""`watermark` of each API that answers: what the engine is asked, and what is refused.

What its members may be is checked behind this engine: tests/conformance/test_watermark.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from support.asgi import Reply, post
from support.fake_engine import FakeEngine

HI = [{"role": "user", "content": "Hi"}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 9, "model": "fake/model"},
    "/generate": {"inputs": "Hi"},
    "/generate_stream": {"inputs": "Hi"},
    "/": {"inputs": "Hi"},
    "/invocations": {"inputs": "Hi"},
}
every = pytest.mark.parametrize("path", APIS)


def ask(app: FastAPI, path: str, wish: Any) -> Reply:
    body, given = APIS[path], {"watermark": wish}
    return post(app, path, {**body, **({"parameters": given} if "inputs" in body else given)})


@every
def test_every_api_takes_it(app: FastAPI, engine: FakeEngine, path: str) -> None:
    for wish in (True, False):
        assert ask(app, path, wish).status == 200
        assert bool(engine.calls[-1].params.watermark) is wish
    wish = {"gamma": 0.25, "delta": 1.5, "hashing_key": 7}
    assert ask(app, path, wish).status == 200
    assert engine.calls[-1].params.watermark == wish
    assert ask(app, path, {}).status == 200
    assert engine.calls[-1].params.watermark == {}


@every
@pytest.mark.parametrize("wish", ["yes", 1, [True]])
def test_what_is_none_is_refused_by_name(app: FastAPI, path: str, wish: Any) -> None:
    reply = ask(app, path, wish)
    assert reply.status == (422 if "inputs" in APIS[path] else 400)
    assert "watermark" in reply.body.decode()
