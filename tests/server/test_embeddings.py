"""POST /v1/embeddings over a scripted engine."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.errors import OverloadedError
from support.asgi import post
from support.fake_engine import FakeEngine

PATH = "/v1/embeddings"


def test_each_input_is_a_vector_in_its_place(app: FastAPI, engine: FakeEngine) -> None:
    body = post(app, PATH, {"model": "fake/model", "input": ["a", "bcd", "ef"], "normalize": False}).json()
    assert body["object"] == "list"
    assert body["model"] == "fake/model"
    assert [item["index"] for item in body["data"]] == [0, 1, 2]
    assert [item["embedding"] for item in body["data"]] == [[3.0 * n, 4.0 * n, 0.0, 1.0] for n in (1, 3, 2)]
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert {call.params.pooling for call in engine.calls} == {"last"}


@pytest.mark.parametrize("given", ["ab", [97, 98], ["ab"], [[97, 98]]])
def test_every_form_of_input(given: Any, app: FastAPI, engine: FakeEngine) -> None:
    (item,) = post(app, PATH, {"input": given}).json()["data"]
    assert engine.calls[0].prompt == [97, 98]
    assert sum(x * x for x in item["embedding"]) == pytest.approx(1.0)


def test_base64_is_little_endian_float32(app: FastAPI) -> None:
    fields = {"input": "ab", "encoding_format": "base64", "dimensions": 2, "pooling": "mean"}
    (item,) = post(app, PATH, fields).json()["data"]
    assert struct.unpack("<2f", base64.b64decode(item["embedding"])) == pytest.approx((0.6, 0.8))


def test_prompts_are_truncated_from_the_left(app: FastAPI, engine: FakeEngine) -> None:
    assert post(app, PATH, {"input": "abcd", "truncate_prompt_tokens": 2}).status == 200
    assert bytes(engine.calls[0].prompt) == b"cd"


def test_to_what_the_model_takes(app: FastAPI, engine: FakeEngine) -> None:
    """vLLM's -1; without it a longer input is refused."""
    for size in (3, 128, 129, 1000):
        engine.calls.clear()
        text = "".join(chr(65 + i % 50) for i in range(size))
        assert post(app, PATH, {"input": text, "truncate_prompt_tokens": -1}).status == 200
        assert bytes(engine.calls[0].prompt).decode() == text[-128:]


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"input": None}, "input", "is required"),
        ({"input": ""}, "input", "is empty"),
        ({"input": []}, "input", "must be a string"),
        ({"input": ["a", 5]}, "input", "must be a string"),
        ({"input": [257]}, "input", "no token 257"),
        ({"input": "x" * 129}, "input", "context length is 128"),
        ({"input": ["a"] * 513}, "input", "513 prompts x n 1 is more than the 512"),
        ({"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"dimensions": 0}, "dimensions", "at least 1"),
        ({"dimensions": 5}, "dimensions", "above the model's 4"),
        ({"dimensions": "2"}, "dimensions", "must be an integer"),
        ({"pooling": "max"}, "pooling", "last or mean"),
        ({"normalize": 1}, "normalize", "true or false"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "from 1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "from 1"),
        ({"inputs": "a"}, "inputs", "did you mean 'input'?"),
    ],
)
def test_bad_requests_name_the_field(app: FastAPI, fields: dict[str, Any], param: str, text: str) -> None:
    reply = post(app, PATH, {"input": "a", **fields})
    assert reply.status == 400
    assert reply.error["param"] == param
    assert text in reply.error["message"]


def test_a_model_without_hidden_states_says_so(app: FastAPI, engine: FakeEngine) -> None:
    engine.embedding_size = None
    reply = post(app, PATH, {"input": "a"})
    assert (reply.status, reply.error["message"]) == (400, "this model gives no embeddings")


def test_overload_is_a_429(app: FastAPI, engine: FakeEngine) -> None:
    engine.refuse = OverloadedError("too many")
    assert post(app, PATH, {"input": ["a", "b"]}).status == 429
