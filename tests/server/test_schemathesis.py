"""The OpenAPI document against the app with a scripted engine: what it describes is taken, and nothing ends
in a 500. Most random bodies are refused; those of the second document, in which all fields are in range, are
answered."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from octavo.server.app import create_app
from support.fake_engine import FakeEngine

APP = create_app(FakeEngine(max_model_len=100_000))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, about what it imports
    schema = schemathesis.openapi.from_asgi("/openapi.json", APP)


calls = Counter[str]()
answers = Counter[tuple[str, bool, bool]]()
"""(path, more than one choice, streamed)."""


def few(examples: int) -> settings:
    """So many examples of each operation (fewer of one that has no such choice)."""
    return settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@schema.parametrize()
@few(25)
def test_nothing_ends_in_a_server_error(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=[not_a_server_error])


def number(low: float, high: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": high}


LENGTH = number(1, 8)
WORD = {"type": "string", "minLength": 1, "maxLength": 12, "pattern": "^[a-z ]+$"}
TURN = {
    "type": "object", "additionalProperties": False, "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "assistant"]}, "content": WORD},
}  # fmt: skip
TURNS = {"type": "array", "minItems": 1, "maxItems": 3, "items": TURN}
COMMON = {
    "stream": {"type": "boolean"},
    "temperature": number(0, 1, "number"),
    "top_p": number(0.1, 1, "number"),
}
OPENAI = COMMON | {
    "n": number(1, 3), "max_tokens": LENGTH, "seed": number(0, 2**31), "min_tokens": number(0, 1),
    "presence_penalty": number(-2, 2, "number"), "frequency_penalty": number(-2, 2, "number"),
    "stop": {"type": "array", "items": WORD, "maxItems": 2}, "return_token_ids": {"type": "boolean"},
}  # fmt: skip
TGI = {
    "inputs": WORD,
    "parameters": {
        "type": "object", "additionalProperties": False, "properties": {
            "max_new_tokens": LENGTH, "temperature": number(0.1, 2, "number"), "top_k": number(1, 50),
            "top_p": number(0.1, 0.9, "number"), "repetition_penalty": number(0.5, 2, "number"),
            "frequency_penalty": number(-2, 2, "number"), "do_sample": {"type": "boolean"},
            "details": {"type": "boolean"}, "return_full_text": {"type": "boolean"},
            "typical_p": number(0.1, 0.9, "number"), "watermark": {"type": "boolean"},
            "seed": number(0, 2**31), "top_n_tokens": number(0, 5), "truncate": number(1, 9),
            "stop": {"type": "array", "items": WORD, "maxItems": 2},
        },
    },
}  # fmt: skip
TGI_CALLS = (
    "POST /", "POST /invocations", "POST /generate", "POST /generate_stream", "POST /chat_tokenize",
    "GET /info", "TGI's /tokenize",
)  # fmt: skip
IN_RANGE: dict[str, dict[str, Any]] = {
    "/": TGI | {"stream": {"type": "boolean"}},
    "/invocations": TGI | {"stream": {"type": "boolean"}},
    "/generate": TGI,
    "/generate_stream": TGI,
    "/chat_tokenize": {"messages": TURNS},
    "/v1/completions": OPENAI | {
        "prompt": {"anyOf": [WORD, {"type": "array", "items": WORD, "minItems": 1, "maxItems": 3}]},
        "echo": {"type": "boolean"}, "logprobs": number(0, 5), "best_of": number(3, 4),
    },
    "/v1/chat/completions": OPENAI | {"messages": TURNS, "logprobs": {"type": "boolean"}},
    "/v1/messages": COMMON | {"messages": TURNS, "max_tokens": LENGTH, "model": {"const": "fake/model"}},
    "/v1/responses": COMMON | {"input": WORD, "max_output_tokens": LENGTH, "store": {"type": "boolean"}},
    "/v1/embeddings": {"input": WORD},
    "/tokenize": {"prompt": WORD},
    "/detokenize": {"tokens": {"type": "array", "items": number(0, 255)}},
}  # fmt: skip
"""Of an operation's body: fields, each of which it takes."""
ASKED = {"inputs", "prompt", "messages", "input", "tokens", "n", "max_tokens", "model", "stream"}
EXCLUDE_EACH_OTHER = ("needs n: 1", "needs stream: false")


def tgis_tokenize() -> Any:
    """TGI's requests to the path that the document knows as vLLM's."""
    document = json.loads(json.dumps(APP.openapi()))
    paths = document["paths"]
    asked = {**paths["/tokenize"]["post"], "requestBody": paths["/generate"]["post"]["requestBody"]}
    made = schemathesis.openapi.from_dict({**document, "paths": {"/tokenize": {"post": asked}}})
    made.app = APP
    return made


def narrowed(bodies: Mapping[str, Mapping[str, Any]]) -> Any:
    """The document with these bodies, by path."""
    document = json.loads(json.dumps(APP.openapi()))
    for path, fields in bodies.items():
        operation = document["paths"][path]["post"]
        body = operation["requestBody"]["content"]["application/json"]
        known = set(body["schema"]["properties"]) if "properties" in body["schema"] else set(fields)
        assert set(fields) <= known, f"{path} has no {set(fields) - known}"
        body["schema"] = {
            "type": "object", "properties": fields, "additionalProperties": False,
            "required": sorted(ASKED & set(fields)),
        }  # fmt: skip
    document["paths"] = {path: {"post": document["paths"][path]["post"]} for path in bodies}
    made = schemathesis.openapi.from_dict(document)
    made.app = APP
    made.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE])
    return made


def several_choices(stream: bool) -> Any:
    """What is drawn at random may well be without these: bodies that all ask for several choices."""
    fixed = {"n": number(2, 3), "stream": {"const": stream}}
    without = {"best_of"} if stream else set()  # excludes streams
    return narrowed(
        {
            path: {name: field for name, field in IN_RANGE[path].items() if name not in without} | fixed
            for path in ("/v1/completions", "/v1/chat/completions")
        }
    )


in_range, tokenized = narrowed(IN_RANGE), tgis_tokenize()
several_whole, several_streamed = several_choices(stream=False), several_choices(stream=True)


def answered(case: schemathesis.Case) -> None:
    answer, body = case.call(), case.body
    if answer.status_code == 400 and any(each in answer.text for each in EXCLUDE_EACH_OTHER):
        return
    assert answer.status_code == 200, answer.text
    assert not {'"error":{', '"error":"'} & set(re.findall(r'"error":.', answer.text.replace(" ", "")))
    answers[case.operation.path, body.get("n", 1) > 1, body.get("stream", False)] += 1
    if "n" in body and not body.get("stream"):
        prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [""]
        assert len(answer.json()["choices"]) == body["n"] * len(prompts)


@in_range.parametrize()
@settings(few(25), derandomize=True)
def test_what_is_in_range_is_answered(case: schemathesis.Case) -> None:
    """With all that was asked for, and no error in the middle of a stream."""
    answered(case)


@several_whole.parametrize()
@settings(few(8), derandomize=True)
def test_several_choices_are_answered(case: schemathesis.Case) -> None:
    answered(case)


@several_streamed.parametrize()
@settings(few(8), derandomize=True)
def test_several_streamed_choices_are_answered(case: schemathesis.Case) -> None:
    answered(case)


def test_all_kinds_of_answers_were_met() -> None:
    """Counts the tests above, which run before it: several choices, whole and streamed."""
    for path in ("/v1/completions", "/v1/chat/completions"):
        for stream in (False, True):
            assert answers[path, True, stream] >= 4
    for path in IN_RANGE:
        assert sum(count for (which, *_), count in answers.items() if which == path) >= 12


@pytest.mark.slow
@schema.parametrize()
@few(600)
def test_nothing_in_thousands_of_calls(case: schemathesis.Case) -> None:
    calls[case.operation.label] += 1
    case.call_and_validate(checks=[not_a_server_error])


@pytest.mark.slow
@tokenized.parametrize()
@few(600)
def test_nothing_in_hundreds_of_texts_that_tgi_would_tokenize(case: schemathesis.Case) -> None:
    calls["TGI's /tokenize"] += 1
    case.call_and_validate(checks=[not_a_server_error])


@pytest.mark.slow
def test_there_were_thousands_of_calls(record_testsuite_property: Callable[[str, object], None]) -> None:
    """Counts the tests above, which run before it."""
    record_testsuite_property("calls", calls.total())
    record_testsuite_property("operations", len(calls))
    of_tgi = sum(calls[label] for label in TGI_CALLS)
    record_testsuite_property("tgi_calls", of_tgi)
    assert of_tgi >= 3000
    print(f"{calls.total()} calls of {len(calls)} operations, none a server error")
    assert calls.total() >= 5000
