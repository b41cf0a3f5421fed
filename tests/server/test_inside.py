"""server/inside.py: what a large body holds is counted, and what is too much is not parsed."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from fastapi import FastAPI

from octavo.server import inside
from octavo.server.inside import MOST, body_holds_more
from octavo.server.openai import body as bodies
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.shapes import MANY
from support.asgi import post
from support.growth import LINEAR, growth

NAMES = "{" + ",".join(f'"n{number}":0' for number in range(1000)) + "}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (NAMES, 1001),
        ("[[],[],{}]", 4),
        ('["[", "{", "a:", "\\"["]', 1),
        ('{"a\\"b" : ["c", ":"]}', 3),
        ('{"a":"' + "\\\\" * 500 + '"}', 2),
        ('{"a":"' + '\\"' * 5000 + '"}', 2),
        ('"' * 1000, 0),
    ],
    ids=["names", "lists", "texts", "escapes", "backslashes", "quotes", "nothing inside"],
)
def test_names_and_lists_are_counted_as_json_has_them(text: str, count: int) -> None:
    assert not body_holds_more(text.encode(), count)
    assert count == 0 or body_holds_more(text.encode(), count - 1)


@pytest.mark.parametrize("piece", ['"a":', '"', '\\"', '"\\', "[", '" ', '""', "\\\\"])
def test_counting_them_is_linear_also_in_what_is_no_json(piece: str) -> None:
    ahead = b'"' * 400_000 + b'{"'  # so that there is something to count
    assert growth(lambda count: body_holds_more(ahead + (piece * count).encode(), 100_000), 200_000) < LINEAR


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("member", ['"n{}":0', '"n{}":[]', '"a":[{{}}]'])
def test_a_body_of_too_many_names_and_lists_is_not_parsed(
    app: FastAPI, path: str, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter's lock is held while they are made."""

    def from_json(*args: object, **kwargs: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(bodies.pydantic_core, "from_json", from_json)
    body = "{" + ",".join(member.format(number) for number in range(MOST)) + "}"
    reply = post(app, path, body.encode())
    assert reply.status == 400
    assert f"more than {MOST} names and lists" in reply.error["message"]


def test_as_many_messages_as_are_taken_are_let_through() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}] * MANY}).encode()
    assert not body_holds_more(body, MOST)
    assert body_holds_more(body, 3 * MANY)
    assert len(bodies.parse(ChatRequest, body).messages) == MANY


def test_one_body_is_looked_through_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread that wants the interpreter's lock is one more that the event loop waits behind."""
    threads: set[int] = set()

    def look(body: bytes, most: int) -> bool:
        threads.add(threading.get_ident())
        time.sleep(0.001)  # the others are there by then
        return False

    async def six() -> None:
        await asyncio.gather(*(inside.check_inside(b"") for _ in range(6)))

    monkeypatch.setattr(inside, "body_holds_more", look)
    asyncio.run(six())
    assert len(threads) == 1


def test_texts_are_skipped_by_the_hundred() -> None:
    """A look at each of a million takes longer than to parse them."""
    body = b"[" + b'"a",' * 500_000 + b"{"
    assert sum(1 for _ in inside._INSIDE.finditer(body)) < 500_000 / 400
