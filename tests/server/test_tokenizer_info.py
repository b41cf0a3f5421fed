"""GET /tokenizer_info, which lm-eval and vLLM's clients ask for."""

from __future__ import annotations

from fastapi import FastAPI

from octavo.server.app import create_app
from support.asgi import get
from support.fake_engine import FakeEngine


def test_named_tokens_and_the_template(app: FastAPI, engine: FakeEngine) -> None:
    assert get(app, "/tokenizer_info").json() == {
        "tokenizer_class": "FakeTokenizer",
        "model_max_length": 128,
        "bos_token": None,
        "eos_token": "<eos>",
        "pad_token": None,
        "unk_token": None,
        "chat_template": "fake",
    }
    engine.template = None
    assert get(app, "/tokenizer_info").json()["chat_template"] is None


def test_not_before_the_model_is_there() -> None:
    assert get(create_app(None), "/tokenizer_info").status == 503
