"""TGI's /tokenize on the path of vLLM's, and /chat_tokenize."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from octavo.server.tgi.tokens import located
from support.asgi import post
from support.fake_engine import FakeEngine, FakeTokenizer


def test_the_body_says_whose_request_it_is(app: FastAPI) -> None:
    theirs = post(app, "/tokenize", {"inputs": "Hé"}).json()
    assert theirs == [
        {"id": 72, "text": "H", "start": 0, "stop": 1},
        {"id": 195, "text": "é", "start": 1, "stop": 2},
        {"id": 169, "text": "é", "start": 1, "stop": 2},
    ]
    for prompt in ("a", '"inputs"'):
        assert post(app, "/tokenize", {"prompt": prompt}).json()["count"] == len(prompt)


def test_errors_are_the_words_of_whose_request_it_is(app: FastAPI) -> None:
    reply = post(app, "/tokenize", {"inputs": 3})
    assert (reply.status, reply.json()["error_type"]) == (422, "validation")
    for unknown in ({"inputs": "a", "wat": 1}, {"inputs": "a", "parameters": {"wat": 1}}):
        assert "unknown field 'wat'" in post(app, "/tokenize", unknown).json()["error"]
    for body in ({"prompt": 3}, {"prompt": '"inputs"', "wat": 1}, b'{"inputs"', b'["inputs"]'):
        reply = post(app, "/tokenize", body)
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    locked = create_app(FakeEngine(), ServerSettings(api_keys=("k",)))
    assert post(locked, "/tokenize", {"inputs": "a"}).error["code"] == "invalid_api_key"


def test_a_chat_as_text_and_tokens(app: FastAPI) -> None:
    chat = {"model": "tgi", "messages": [{"role": "user", "content": "Hi"}]}
    answer = post(app, "/chat_tokenize", chat).json()
    assert answer["templated_text"] == "user:Hi\nassistant:"
    assert "".join(each["text"] for each in answer["tokenize_response"]) == answer["templated_text"]
    reply = post(app, "/chat_tokenize", {**chat, "messages": 3})
    assert (reply.status, reply.json()["error_type"]) == (422, "validation")


class Pieces(FakeTokenizer):
    """Tokens with these bytes."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


@pytest.mark.parametrize(
    ("pieces", "text", "spans"),
    [
        ([b"<s>", b"Hi"], "Hi", ["", "Hi"]),
        ([b"<s>", b" Hi", b" you"], "Hi you", ["", "Hi", " you"]),
        ([b"<s>", b"fi"], "\ufb01", ["", ""]),
        ([b"\xf0\x9f", b"\x98\x80", b"!"], "😀!", ["😀", "😀", "!"]),
        ([b"a\xc3", b"\xa9b"], "aéb", ["aé", "éb"]),
        ([], "", []),
    ],
)
def test_tokens_are_found_in_their_text(pieces: list[bytes], text: str, spans: list[str]) -> None:
    found: list[dict[str, Any]] = located(Pieces(*pieces), range(len(pieces)), text)
    assert [each["text"] for each in found] == spans
    assert all(text[each["start"] : each["stop"]] == each["text"] for each in found)


@given(st.text(max_size=12))
def test_bytes_of_any_text_are_found(text: str) -> None:
    found = located(FakeTokenizer(), list(text.encode()), text)
    places = [at for at, character in enumerate(text) for _ in character.encode()]
    assert [(each["start"], each["stop"]) for each in found] == [(at, at + 1) for at in places]
