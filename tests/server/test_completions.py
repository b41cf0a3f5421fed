"""POST /v1/completions: prompts in every shape, echo, and the older logprobs."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from octavo.params import BeamSearchParams, Logprob
from octavo.server.openai.completion_logprobs import CompletionLogprobs
from support.asgi import post
from support.fake_engine import FakeEngine, FakeTokenizer

PATH = "/v1/completions"


def test_whole_answer_has_openai_shape(app: FastAPI, engine: FakeEngine) -> None:
    answer = post(app, PATH, {"prompt": "ab"}).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["seed"] == 77
    assert answer["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert answer["usage"]["prompt_tokens"] == 2
    assert engine.calls[0].params.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        ([97, 98], [[97, 98]]),
        (["a", "b"], [[97], [98]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
    ],
)
def test_prompts_in_every_shape(
    app: FastAPI, engine: FakeEngine, prompt: Any, expected: list[list[int]]
) -> None:
    answer = post(app, PATH, {"prompt": prompt}).json()
    assert sorted(call.prompt for call in engine.calls) == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))


def test_choices_of_a_batch_are_ordered_by_prompt_then_sample(app: FastAPI, engine: FakeEngine) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "echo": True}
    answer = post(app, PATH, body).json()
    texts = ["aHello", "aHello1", "bHello", "bHello1"]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["seed"] for choice in answer["choices"]] == [77] * 4
    assert "seed" not in answer
    streamed = [""] * 4
    for event in post(app, PATH, body | {"stream": True}).events():
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts
    assert len({call.request_id for call in engine.calls}) == 4


def test_usage_of_a_batch_is_the_sum(app: FastAPI) -> None:
    body = {"prompt": ["a", "bcd"], "max_tokens": 2}
    usage = post(app, PATH, body).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 4)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert post(app, PATH, body | options).events()[-1]["usage"] == usage


@pytest.mark.parametrize(("n", "at_once"), [(1, 128), (3, 42), (128, 1)])
def test_a_large_batch_goes_to_the_engine_bit_by_bit(
    app: FastAPI, engine: FakeEngine, n: int, at_once: int
) -> None:
    count = 130 if n == 1 else at_once + 3
    answer = post(app, PATH, {"prompt": ["a"] * count, "n": n, "max_tokens": 2}).json()
    assert len(answer["choices"]) == count * n
    assert engine.most_at_once == at_once


def test_echo_writes_special_tokens_of_id_prompts(app: FastAPI) -> None:
    answer = post(app, PATH, {"prompt": [97, 256], "echo": True, "max_tokens": 1}).json()
    assert answer["choices"][0]["text"] == "a<eos>H"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stream_concatenates_to_the_whole_answer(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = "né 🙂"
    events = post(app, PATH, {"prompt": "a", "stream": True}).events()
    assert "".join(event["choices"][0]["text"] for event in events) == "né 🙂"
    assert all(event["choices"][0]["text"] or event["choices"][0]["finish_reason"] for event in events)


def test_logprobs_streamed_are_those_of_the_whole(app: FastAPI) -> None:
    body = {"prompt": "a", "logprobs": 1}
    whole = post(app, PATH, body).json()["choices"][0]["logprobs"]
    assert whole == {
        "tokens": ["H", "e", "l", "l", "o", "<eos>"],
        "token_logprobs": [-0.5] * 6,
        "top_logprobs": [{"H": -0.5}, {"e": -0.5}, {"l": -0.5}, {"l": -0.5}, {"o": -0.5}, {"<eos>": -0.5}],
        "text_offset": [0, 1, 2, 3, 4, 5],
    }
    streamed: dict[str, list[Any]] = {key: [] for key in whole}
    for event in post(app, PATH, body | {"stream": True}).events():
        for key, values in event["choices"][0]["logprobs"].items():
            streamed[key] += values
    assert streamed == whole


def test_offsets_count_characters_not_tokens(engine: FakeEngine) -> None:
    ids = list("né!".encode())
    entries = [{i: Logprob(-1.0)} for i in ids]
    lists = CompletionLogprobs(engine.tokenizer, 0, True).add(ids, entries)
    assert lists["text_offset"] == [0, 1, 1, 2]
    assert lists["tokens"] == ["n", "bytes:\\xc3", "bytes:\\xa9", "!"]


def test_infinite_logprobs_stay_json(engine: FakeEngine) -> None:
    lists = CompletionLogprobs(engine.tokenizer, 1, True).add([97], [{97: Logprob(float("-inf"))}])
    assert lists["token_logprobs"] == [-9999.0]
    assert list(lists["top_logprobs"]) == [{"a": -9999.0}]


def test_a_beam_search_has_best_of_beams_and_returns_n(app: FastAPI, engine: FakeEngine) -> None:
    body = {"prompt": "a", "use_beam_search": True, "n": 2, "best_of": 4, "max_tokens": 9}
    answer = post(app, PATH, {**body, "length_penalty": 0.5, "early_stopping": "never"}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    params = engine.calls[0].params
    assert params.n == 2
    assert params.beam_search == BeamSearchParams(4, 9, length_penalty=0.5, early_stopping="never")


def test_a_beam_search_alone_has_n_beams(app: FastAPI, engine: FakeEngine) -> None:
    post(app, PATH, {"prompt": "a", "use_beam_search": True, "n": 3, "ignore_eos": True})
    assert engine.calls[0].params.beam_search == BeamSearchParams(3, 16, ignore_eos=True)


@pytest.mark.parametrize(
    ("top", "expected"), [(0, ["x"]), (1, ["a", "x"]), (2, ["a", "x"]), (3, ["a", "x", "b"])]
)
def test_the_chosen_token_is_always_among_the_likeliest(top: int, expected: list[str]) -> None:
    """OpenAI: up to logprobs + 1 of them."""
    at = {120: Logprob(-2.0, 2), 97: Logprob(-1.0, 1), 98: Logprob(-3.0, 3)}
    lists = CompletionLogprobs(FakeTokenizer(), top, True).add([120], [at])
    (likeliest,) = lists["top_logprobs"]
    assert list(likeliest) == expected
    assert likeliest["x"] == lists["token_logprobs"][0] == -2.0
