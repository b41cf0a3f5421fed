"""How requests ask for the shape of an answer, and what reaches the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.params import StructuredOutputsParams
from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import post
from support.fake_engine import FakeEngine

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
TEXT = ("/v1/completions", {"prompt": "Hi"})
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = {**SCHEMA, "additionalProperties": False}


@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json", "value": SCHEMA}}, {"json": SCHEMA}),
        ({"response_format": {"type": "json", "value": json.dumps(SCHEMA)}}, {"json": SCHEMA}),
        ({"response_format": {"type": "regex", "value": "[0-9]+"}}, {"regex": "[0-9]+"}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": CLOSED, "strict": True},
                }
            },
            {"json": CLOSED},
        ),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
    ],
)
def test_every_name_of_it_reaches_the_engine(
    app: FastAPI, engine: FakeEngine, path: str, body: dict[str, Any], field: dict[str, Any], expected: Any
) -> None:
    reply = post(app, path, body | field)
    assert reply.status == 200, reply.body
    wanted = None if expected is None else StructuredOutputsParams(**expected)
    assert engine.calls[0].params.structured_outputs == wanted


def test_small_fields_reach_the_engine(app: FastAPI, engine: FakeEngine) -> None:
    fields = {"bad_words": ["no"], "allowed_token_ids": [72, 256], "truncate_prompt_tokens": 3}
    assert post(app, "/v1/completions", {"prompt": "abcdef", **fields}).status == 200
    call = engine.calls[0]
    assert call.prompt == list(b"def")
    assert call.params.bad_words == ("no",)
    assert call.params.allowed_token_ids == (72, 256)


def test_a_prompt_that_is_cut_may_be_longer_than_the_context(app: FastAPI, engine: FakeEngine) -> None:
    reply = post(
        app, "/v1/completions", {"prompt": "x" * 500 + "yz", "truncate_prompt_tokens": 2, "echo": True}
    )
    assert reply.json()["choices"][0]["text"] == "yzHello"


def test_prompt_logprobs_in_both_endpoints(app: FastAPI) -> None:
    expected = [None, {"98": {"logprob": -0.25, "rank": 1, "decoded_token": "p"}}]
    answer = post(app, "/v1/completions", {"prompt": "ab", "prompt_logprobs": 0}).json()
    assert answer["choices"][0]["prompt_logprobs"] == expected
    answer = post(app, CHAT[0], CHAT[1] | {"prompt_logprobs": 0}).json()
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_gives_the_prompts(app: FastAPI, engine: FakeEngine, stream: bool) -> None:
    body = {"prompt": "né", "echo": True, "logprobs": 0, "max_tokens": 2}
    lists: dict[str, list[Any]] = {}
    if stream:
        for event in post(app, "/v1/completions", body | {"stream": True}).events():
            for name, values in event["choices"][0]["logprobs"].items():
                lists.setdefault(name, []).extend(values)
    else:
        lists = post(app, "/v1/completions", body).json()["choices"][0]["logprobs"]
    assert lists["tokens"] == ["n", "bytes:\\xc3", "bytes:\\xa9", "H", "e"]
    assert lists["token_logprobs"] == [None, -0.25, -0.25, -0.5, -0.5]
    assert lists["text_offset"] == [0, 1, 1, 2, 3]
    assert lists["top_logprobs"][0] is None


def test_no_tokens_at_all_but_the_prompts_logprobs(app: FastAPI) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = post(app, "/v1/completions", body).json()
    choice, usage = answer["choices"][0], answer["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25]
    assert choice["finish_reason"] == "length"


def test_a_prompt_that_is_only_scored_may_fill_the_context(app: FastAPI) -> None:
    body = {"prompt": [97] * 128, "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = post(app, "/v1/completions", body)
    assert answer.status == 200
    assert len(answer.json()["choices"][0]["logprobs"]["token_logprobs"]) == 128
    for change, words in (
        ({"prompt": [97] * 129}, "resulted in 129 tokens. Please"),
        ({"max_tokens": 2}, "resulted in 128 tokens, and an answer takes at least one more. Please"),
        ({"logprobs": None}, "an answer takes at least one more. Please"),
    ):
        refused = post(app, "/v1/completions", body | change)
        assert refused.status == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert refused.json()["error"]["message"].endswith(f"{words} reduce the length of the prompt.")


def test_best_of_asks_for_all_and_returns_the_best(app: FastAPI, engine: FakeEngine) -> None:
    answer = post(app, "/v1/completions", {"prompt": "a", "best_of": 3, "n": 1}).json()
    assert engine.calls[0].params.n == 3
    assert engine.calls[0].params.logprobs == 0
    assert [choice["index"] for choice in answer["choices"]] == [0]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 6 + 7 + 7


DEEP = '{"a":' * 5000 + "1" + "}" * 5000
TAG = {"begin": "<f>", "end": "</f>"}


@pytest.mark.parametrize(
    "wanted",
    [
        {"structural_tag": "true"},
        {"json": {"minimum": 10**300}},
        {"json": {"type": "string", "minLength": 10**300}},
        {"structural_tag": {"structures": [TAG | {"schema": {"$ref": "//["}}], "triggers": ["<f>"]}},
        {"structural_tag": {"structures": [TAG | {"schema": {"minimum": 10**300}}], "triggers": ["<f>"]}},
        {"structural_tag": DEEP},
        {"regex": "(?x)(a {1000}) {1000}"},
        {"grammar": "start: /(a{1000}){1000}/"},
        {"grammar": 'start: %json {"pattern": "(a{1000}){1000}"}'},
        {"grammar": "root ::= " + "(" * 50_000},
        {
            "grammar": "root ::= r0\n"
            + "".join(f"r{i} ::= r{i + 1}\n" for i in range(8_000))
            + 'r8000 ::= "a"'
        },
    ],
    ids=lambda wanted: str(wanted)[:60],
)
def test_what_cannot_be_compiled_is_the_senders_mistake(app: FastAPI, wanted: dict[str, Any]) -> None:
    reply = post(app, CHAT[0], CHAT[1] | {"structured_outputs": wanted})
    assert reply.status == 400, reply.body
    assert reply.json()["error"]["param"] == "structured_outputs"


def formatted(schema: Any, **more: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}
    }


@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize(
    ("schema", "context"),
    [
        (SCHEMA, "()"),
        ({"properties": {}}, "()"),
        ({**CLOSED, "properties": {"b": SCHEMA}}, "('properties', 'b')"),
        ({**CLOSED, "$defs": {"d": {"type": ["object", "null"]}}}, "('$defs', 'd')"),
        ({"type": "array", "items": {"anyOf": [CLOSED, SCHEMA]}}, "('items', 'anyOf', '1')"),
        ({**CLOSED, "additionalProperties": True}, "()"),
    ],
)
def test_a_strict_schema_must_be_closed(
    app: FastAPI, engine: FakeEngine, path: str, body: dict[str, Any], schema: Any, context: str
) -> None:
    reply = post(app, path, body | formatted(schema, strict=True))
    assert reply.status == 400
    error = reply.json()["error"]
    assert error["param"] == "response_format"
    assert (
        f"In context={context}, 'additionalProperties' is required to be supplied and to be false"
        in (error["message"])
    )
    assert post(app, path, body | formatted(schema, strict=False)).status == 200
    assert engine.calls[0].params.structured_outputs == StructuredOutputsParams(json=schema)


@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT], ids=["chat", "text"])
def test_schemas_are_closed_by_a_flag_and_only_those_of_response_format(
    engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    app = create_app(engine, ServerSettings(closed_schemas=True))
    open_ = {**SCHEMA, "additionalProperties": True}
    for field, expected in (
        (formatted(SCHEMA), CLOSED),
        (formatted(open_), open_),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA),
        ({"guided_json": SCHEMA}, SCHEMA),
    ):
        assert post(app, path, body | field).status == 200
        assert engine.calls[-1].params.structured_outputs == StructuredOutputsParams(json=expected)
