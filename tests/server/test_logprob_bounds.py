"""How many log-probabilities one answer may hold, and that a large answer is not written by the loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.params import RequestOutputKind, SamplingParams
from octavo.server.app import create_app
from octavo.server.openai import answers
from octavo.server.openai.logprobs import MAX_REPORTED, check_reported
from support.asgi import post
from support.fake_engine import FakeEngine

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("asked", "lengths", "name"),
    [
        ({"prompt_logprobs": 20, "max_tokens": 1}, [8191] * 3, None),
        ({"prompt_logprobs": 20, "max_tokens": 1}, [8191] * 4, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "max_tokens": 1}, [8191] * 64, None),
        ({"prompt_logprobs": 0, "max_tokens": 1}, [8191] * 65, "prompt_logprobs"),
        ({"logprobs": 20, "n": 3, "max_tokens": 8000}, [9], None),
        ({"logprobs": 20, "n": 4, "max_tokens": 8000}, [9], "logprobs"),
        ({"logprobs": 20, "n": 4, "max_tokens": None}, [9], "logprobs"),
        ({"logprobs": 20, "n": 4, "max_tokens": None}, [8000], None),  # the context holds no more
        ({"logprobs": 20, "n": 128, "max_tokens": 16}, [9], None),
        ({"logprobs": 1, "prompt_logprobs": 1, "max_tokens": 16}, [4096] * 62, None),
        ({"logprobs": 1, "prompt_logprobs": 1, "max_tokens": 16}, [4096] * 64, "prompt_logprobs"),
        ({"logprobs": 0, "n": 64, "max_tokens": None}, [9] * 2, "logprobs"),
    ],
)
def test_prompts_by_tokens_by_k_are_bounded(
    asked: dict[str, Any], lengths: list[int], name: str | None
) -> None:
    params = SamplingParams(**asked)
    if name is None:
        check_reported(params, lengths, 8192)
        return
    with pytest.raises(InvalidRequestError, match=f"^{name}: .*at most {MAX_REPORTED}") as caught:
        check_reported(params, lengths, 8192)
    assert caught.value.param == name


def test_streams_are_bounded_by_what_one_event_holds() -> None:
    delta = RequestOutputKind.DELTA
    check_reported(SamplingParams(logprobs=20, n=128, max_tokens=8000, output_kind=delta), [9], 8192)
    check_reported(SamplingParams(prompt_logprobs=3, output_kind=delta), [4096], 8192)
    with pytest.raises(InvalidRequestError, match="at most 16384"):
        check_reported(SamplingParams(prompt_logprobs=20, output_kind=delta), [4096], 8192)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": [[97] * 120] * 256, "prompt_logprobs": 20, "max_tokens": 1}, "prompt_logprobs"),
        (TEXT, {"prompt": "a", "n": 128, "logprobs": 20, "max_tokens": 120}, None),
        (TEXT, {"prompt": ["a"] * 4, "n": 128, "logprobs": 20, "max_tokens": 120}, "logprobs"),
        (CHAT, {"messages": HI, "n": 128, "logprobs": True, "top_logprobs": 20}, None),
    ],
)
def test_too_many_are_refused_by_the_fields_name(path: str, body: dict[str, Any], param: str | None) -> None:
    engine = FakeEngine()
    reply = post(create_app(engine), path, body)
    assert reply.status == (200 if param is None else 400)
    if param is not None:
        assert reply.error["param"] == param
        assert not engine.calls


def test_in_chats_the_field_is_top_logprobs() -> None:
    engine = FakeEngine(max_model_len=1024)
    body = {"messages": HI, "n": 128, "logprobs": True, "top_logprobs": 20}
    reply = post(create_app(engine), CHAT, body)
    assert (reply.status, reply.error["param"]) == (400, "top_logprobs")
    assert reply.error["message"].startswith("top_logprobs: ")


def test_a_large_answer_is_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    dumps = answers.dumps

    def noted(value: Any) -> str:
        threads.append(threading.current_thread().name)
        return dumps(value)

    monkeypatch.setattr(answers, "dumps", noted)
    app = create_app(FakeEngine())
    assert post(app, TEXT, {"prompt": "a", "n": 16, "logprobs": 20, "max_tokens": 5}).status == 200
    assert threading.main_thread().name not in threads
    threads.clear()
    assert post(app, TEXT, {"prompt": "a", "logprobs": 1, "max_tokens": 5}).status == 200
    assert set(threads) == {threading.main_thread().name}
