"""TGI's API over a scripted engine: what is asked of the engine, and what its clients read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.params import CompletionOutput, Logprob, RequestOutputKind
from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from octavo.server.tgi.protocol import GenerateParameters
from octavo.server.tgi.writing import TokenWriter, finish_reason
from support.asgi import Reply, call, get, post
from support.fake_engine import EOS, FakeEngine, FakeTokenizer

GENERATE, STREAM = "/generate", "/generate_stream"
TOKEN = {"id", "text", "logprob", "special"}
# The members of the objects that TGI's OpenAPI document (3.x) shows in its examples.
SEQUENCE = {"finish_reason", "generated_text", "generated_tokens", "prefill", "seed", "tokens", "top_tokens"}
DETAILS = SEQUENCE - {"generated_text"} | {"best_of_sequences"}
STREAM_DETAILS = {"finish_reason", "generated_tokens", "input_length", "seed"}
INFO = {
    "docker_label", "max_best_of", "max_client_batch_size", "max_concurrent_requests", "max_input_tokens",
    "max_stop_sequences", "max_total_tokens", "model_id", "model_pipeline_tag", "model_sha", "router", "sha",
    "validation_workers", "version",
}  # fmt: skip
TIMES = {"compute", "total", "validation", "queue", "inference"}


def ask(app: FastAPI, path: str = GENERATE, inputs: Any = "Hi", **parameters: Any) -> Reply:
    return post(app, path, {"inputs": inputs, "parameters": parameters})


def events(reply: Reply) -> list[dict[str, Any]]:
    """A stream's data. It has no [DONE]: TGI's own client parses every line as a token."""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.body.endswith(b"\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in reply.body.decode().split("\n\n")[:-1]]


def refused(reply: Reply, status: int, kind: str) -> str:
    """The message of an error in TGI's shape."""
    assert reply.status == status, reply.body
    assert reply.json().keys() == {"error", "error_type"}
    assert reply.json()["error_type"] == kind
    return str(reply.json()["error"])


def test_a_text_is_gone_on_with(app: FastAPI, engine: FakeEngine) -> None:
    reply = post(app, GENERATE, {"inputs": "Hi"})
    assert reply.json() == {"generated_text": "Hello"}
    (asked,) = engine.calls
    assert bytes(asked.prompt) == b"Hi"
    params = asked.params
    assert (params.temperature, params.max_tokens, params.n, params.logprobs) == (0.0, 100, 1, None)
    assert params.include_stop_str_in_output
    assert {name[2:-5] for name in reply.headers if name.endswith("-time")} >= TIMES
    assert reply.headers["x-prompt-tokens"] == "2"
    assert reply.headers["x-generated-tokens"] == "6"
    assert reply.headers["x-compute-characters"] == "2"
    assert reply.headers["x-compute-type"] == "cpu"
    assert float(reply.headers["x-compute-time"]) > 0
    assert int(reply.headers["x-time-per-token"]) <= int(reply.headers["x-total-time"])


def test_parameters_of_the_published_example(app: FastAPI, engine: FakeEngine) -> None:
    example = {
        "adapter_id": None, "best_of": 1, "decoder_input_details": True, "details": True, "do_sample": True,
        "frequency_penalty": 0.1, "grammar": None, "max_new_tokens": 20, "repetition_penalty": 1.03,
        "return_full_text": False, "seed": None, "stop": ["photographer"], "temperature": 0.5, "top_k": 10,
        "top_n_tokens": 5, "top_p": 0.95, "truncate": None, "typical_p": 0.95, "watermark": True,
    }  # fmt: skip
    answer = ask(app, inputs="My name is Olivier and I", **example).json()
    assert answer.keys() == {"generated_text", "details"}
    assert answer["details"].keys() == DETAILS - {"best_of_sequences"}
    assert answer["details"]["tokens"][0].keys() == TOKEN
    assert answer["details"]["prefill"][0].keys() == TOKEN - {"special"}
    assert [len(each) for each in answer["details"]["top_tokens"]] == [5] * 6
    params = engine.calls[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 10, 0.95)
    assert (params.typical_p, params.watermark) == (0.95, True)
    assert (params.frequency_penalty, params.repetition_penalty) == (0.1, 1.03)
    assert (params.stop, params.max_tokens, params.logprobs, params.prompt_logprobs) == (
        ("photographer",), 20, 5, 0,
    )  # fmt: skip


def test_best_of_and_what_the_others_were(app: FastAPI, engine: FakeEngine) -> None:
    answer = ask(app, best_of=3, do_sample=True, details=True, top_n_tokens=1, return_full_text=True).json()
    assert engine.calls[0].params.n == 3
    assert answer["generated_text"] == "HiHello"
    assert answer["details"].keys() == DETAILS
    others = answer["details"]["best_of_sequences"]
    assert [each["generated_text"] for each in others] == ["HiHello1", "HiHello2"]
    assert others[0].keys() == SEQUENCE
    assert answer["details"]["seed"] == 77


@pytest.mark.parametrize(
    "wish",
    [
        {"do_sample": True},
        {"temperature": 0.7},
        {"temperature": 1},
        {"top_k": 3},
        {"top_p": 0.9},
        {"typical_p": 0.9},
    ],
)
def test_a_sampling_field_draws_and_has_a_seed(
    app: FastAPI, engine: FakeEngine, wish: dict[str, Any]
) -> None:
    details = ask(app, details=True, seed=5, **wish).json()["details"]
    assert details["seed"] == 5
    assert engine.calls[0].params.temperature == wish.get("temperature", 1.0)
    assert ask(app, details=True, seed=5).json()["details"]["seed"] is None
    assert engine.calls[1].params.greedy


def test_a_stream_adds_up_to_the_answer(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = "Grüße, 世界"
    whole = ask(app, details=True).json()
    reply = ask(app, STREAM, details=True)
    assert (reply.headers["x-compute-type"], reply.headers["x-compute-characters"]) == ("cpu", "2")
    streamed = events(reply)
    assert [each["index"] for each in streamed] == [*range(1, len(streamed) + 1)]
    assert [each["token"] for each in streamed] == whole["details"]["tokens"]
    text = "".join(each["token"]["text"] for each in streamed if not each["token"]["special"])
    assert text == engine.reply == whole["generated_text"] == streamed[-1]["generated_text"]
    assert all(each["generated_text"] is each["details"] is None for each in streamed[:-1])
    last = streamed[-1]
    assert last["token"] == {"id": EOS, "text": "<eos>", "logprob": -0.5, "special": True}
    assert last["details"].keys() == STREAM_DETAILS
    assert last["details"] == {
        "finish_reason": "eos_token", "generated_tokens": len(streamed), "seed": None, "input_length": 2,
    }  # fmt: skip
    assert engine.calls[1].params.output_kind is RequestOutputKind.DELTA
    assert events(ask(app, STREAM))[-1]["details"] is None
    likeliest = events(ask(app, STREAM, top_n_tokens=2))[0]["top_tokens"]
    assert [each.keys() for each in likeliest] == [TOKEN, TOKEN]


def test_the_root_asks_with_stream_and_gives_the_whole_text(app: FastAPI) -> None:
    """As the hub's servers do: the prompt is part of the answer unless it is said otherwise."""
    for path in ("/", "/invocations"):
        assert post(app, path, {"inputs": "Hi"}).json() == [{"generated_text": "HiHello"}]
        assert ask(app, path, return_full_text=False).json() == [{"generated_text": "Hello"}]
        streamed = events(post(app, path, {"inputs": "Hi", "stream": True}))
        assert "".join(each["token"]["text"] for each in streamed) == "Hello<eos>"
        assert streamed[-1]["generated_text"] == "HiHello"
    assert get(app, "/").json() == {"name": "octavo", "api": "/v1"}


def test_what_an_encoder_reads_is_no_part_of_the_answer() -> None:
    """As TGI has it of models whose tag is text2text-generation."""
    app = create_app(FakeEngine(max_encoder_len=64))
    assert get(app, "/info").json()["model_pipeline_tag"] == "text2text-generation"
    assert post(app, "/", {"inputs": "Hi"}).json() == [{"generated_text": "Hello"}]
    assert events(post(app, "/", {"inputs": "Hi", "stream": True}))[-1]["generated_text"] == "Hello"
    assert ask(app, "/", return_full_text=True).json() == [{"generated_text": "HiHello"}]


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (CompletionOutput(0, finish_reason="length"), "length"),
        (CompletionOutput(0, finish_reason="stop"), "eos_token"),
        (CompletionOutput(0, finish_reason="stop", stop_reason=7), "eos_token"),
        (CompletionOutput(0, finish_reason="stop", stop_reason="."), "stop_sequence"),
    ],
)
def test_reasons_by_tgis_names(completion: CompletionOutput, reason: str) -> None:
    assert finish_reason(completion) == reason


@settings(deadline=None)
@given(text=st.text(max_size=20), cut=st.integers(0, 3), steps=st.integers(1, 7), ends=st.booleans())
def test_texts_of_tokens_add_up_however_they_come(text: str, cut: int, steps: int, ends: bool) -> None:
    """Whatever a stop string cuts off the last token, and with the end of text behind it or not."""
    ids = list(text.encode())
    whole = text[: len(text) - min(cut, len(text), 1)] if not ends else text
    ids += [EOS] * ends
    writer = TokenWriter(FakeTokenizer(), [72], 0)
    written: list[dict[str, Any]] = []
    for start in range(0, max(len(ids), 1), steps):
        some = ids[start : start + steps]
        scores = [{token: Logprob(-1.0)} for token in some]
        last = start + steps >= len(ids)
        written += [token for token, _ in writer.add(some, scores, whole if last else None)]
    assert "".join(token["text"] for token in written if not token["special"]) == whole
    assert [token["id"] for token in written] == ids


def test_grammars_of_three_kinds(app: FastAPI, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for grammar, field, value in (
        ({"type": "json", "value": schema}, "json", schema),
        ({"type": "json", "value": json.dumps(schema)}, "json", schema),
        ({"type": "json_schema", "value": {"name": "n", "schema": schema}}, "json", schema),
        ({"type": "regex", "value": "[a-z]+"}, "regex", "[a-z]+"),
    ):
        assert ask(app, grammar=grammar).status == 200
        assert getattr(engine.calls[-1].params.structured_outputs, field) == value


@pytest.mark.parametrize("written", [dict, json.dumps])
def test_properties_alone_mean_an_object(app: FastAPI, engine: FakeEngine, written: Any) -> None:
    """As TGI's own examples have them; a schema that names its type is as it stands."""
    bare = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for schema, obeyed in (
        (bare, {"type": "object", **bare}),
        ({**bare, "type": ["object", "null"]}, {**bare, "type": ["object", "null"]}),
        ({"anyOf": [bare]}, {"anyOf": [bare]}),
    ):
        assert ask(app, grammar={"type": "json", "value": written(schema)}).status == 200
        assert engine.calls[-1].params.structured_outputs.json == obeyed


def test_truncate_keeps_the_end(app: FastAPI, engine: FakeEngine) -> None:
    assert ask(app, inputs="a" * 500 + "xyz", truncate=2, max_new_tokens=126).status == 200
    assert bytes(engine.calls[0].prompt) == b"yz"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 0}, "best_of must be strictly positive"),
    ({"best_of": 2}, "best_of > 1 needs sampling"),
    ({"best_of": 2, "do_sample": True, "seed": 1}, "seed must not be set when best_of > 1"),
    ({"best_of": 10**6, "do_sample": True}, "best_of must be"),
    ({"best_of": "2"}, "best_of must be an integer"),
    ({"decoder_input_details": 1}, "decoder_input_details must be true or false"),
    ({"details": "yes"}, "details must be true or false"),
    ({"do_sample": 1}, "do_sample must be true or false"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"frequency_penalty": "a"}, "frequency_penalty must be a number"),
    ({"grammar": "a"}, "grammar must be an object"),
    ({"grammar": {"type": "lark", "value": "a"}}, "grammar must have the type"),
    ({"grammar": {"type": "regex", "value": 3}}, "grammar.value must be a regular expression"),
    ({"grammar": {"type": "json", "value": "{"}}, "grammar.value is not valid JSON"),
    ({"grammar": {"type": "json", "value": 3}}, "grammar.value must be a JSON schema"),
    ({"grammar": {"type": "json_schema", "value": {}}}, "grammar.value must be an object with a schema"),
    ({"grammar": {"type": "json", "value": {}, "x": 1}}, "unknown field grammar.x"),
    ({"grammar": {"type": "json", "value": {"type": "colour"}}}, "grammar"),
    ({"max_new_tokens": 0}, "max_new_tokens must be strictly positive"),
    ({"max_new_tokens": 127}, "max_new_tokens: inputs tokens + max_new_tokens must be <= 128"),
    ({"max_new_tokens": 10**30}, "max_new_tokens"),
    ({"max_new_tokens": 1.5}, "max_new_tokens must be an integer"),
    ({"repetition_penalty": 0}, "repetition_penalty must be strictly positive"),
    ({"repetition_penalty": 1e9}, "repetition_penalty"),
    ({"return_full_text": "a"}, "return_full_text must be true or false"),
    ({"seed": -1}, "seed must be an integer from 0 to 18446744073709551615, not -1"),
    ({"seed": 2**64}, "seed must be an integer from 0 to 18446744073709551615, not 18446744073709551616"),
    ({"seed": 1 << 64}, "seed"),
    ({"stop": "a"}, "stop must be a list"),
    ({"stop": [""]}, "stop must hold non-empty strings"),
    ({"stop": ["a"] * 100}, "stop takes at most"),
    ({"temperature": 0}, "temperature must be strictly positive and at most 100, not 0"),
    ({"temperature": 1e30}, "temperature must be strictly positive and at most 100, not 1e+30"),
    ({"temperature": 1e9}, "temperature"),
    ({"temperature": "hot"}, "temperature must be a number"),
    ({"top_k": 0}, "top_k must be strictly positive"),
    ({"top_k": 2.5}, "top_k must be an integer"),
    ({"top_n_tokens": -1}, "top_n_tokens must be >= 0"),
    ({"top_n_tokens": 1000}, "top_n_tokens must be >= 0"),
    ({"top_p": 1}, "top_p must be > 0.0 and < 1.0"),
    ({"top_p": 0}, "top_p must be > 0.0 and < 1.0"),
    ({"adapter_id": "mine"}, "adapter_id is not supported: no adapters are loaded"),
    ({"truncate": 0}, "truncate must be strictly positive"),
    ({"truncate": 128}, "truncate must be at most 127, which a prompt may have, not 128"),
    ({"truncate": "a"}, "truncate must be an integer"),
    ({"typical_p": 1}, "typical_p must be > 0.0 and < 1.0"),
    ({"typical_p": 0}, "typical_p must be > 0.0 and < 1.0"),
    ({"typical_p": "a"}, "typical_p must be a number"),
    ({"watermark": "yes"}, "watermark must be true or false"),
    ({"watermark": {"gamma": 7}}, "watermark.gamma must be at least 0.01"),
    ({"temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'?"),
]


@pytest.mark.parametrize(("parameters", "text"), BAD, ids=[str(each[0])[:40] for each in BAD])
def test_a_wrong_parameter_is_a_422_with_its_name(
    app: FastAPI, parameters: dict[str, Any], text: str
) -> None:
    paths = [GENERATE, "/", *([] if parameters.get("best_of") == 2 else [STREAM])]
    for path in paths:
        assert text in refused(ask(app, path, **parameters), 422, "validation")


@pytest.mark.parametrize("name", [*GenerateParameters.model_fields, "adapter_id"])
def test_a_value_of_another_type_is_a_422_with_the_parameters_name(app: FastAPI, name: str) -> None:
    for wrong in ([], {"a": 1}, "a", 1.5):
        right = {"stop": ([],), "grammar": (), "frequency_penalty": (1.5,), "repetition_penalty": (1.5,),
                 "temperature": (1.5,)}  # fmt: skip
        if wrong in right.get(name, ()):
            continue
        for path in ("/", GENERATE, STREAM):
            assert name in refused(ask(app, path, **{name: wrong}), 422, "validation")


def test_every_parameter_is_tried_with_wrong_values() -> None:
    assert {name for parameters, _ in BAD for name in parameters} >= set(GenerateParameters.model_fields)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"inputs": ""}, "inputs cannot be empty"),
        ({"inputs": None}, "inputs is required"),
        ({"inputs": ["a"]}, "inputs must be a string, not a list"),
        ({"inputs": "a" * 1000}, "inputs has 1000 characters"),
        ({"inputs": "a" * 400}, "inputs must have less than 128 tokens. Given: 400"),
        ({"inputs": "a", "parameters": []}, "parameters must be an object"),
        ({"inputs": "a", "parameters": {str(i): 1 for i in range(300)}}, "parameters takes at most"),
        ({"inputs": "a", "stream": 1}, "stream must be true or false"),
        ({"input": "a"}, "unknown field 'input'; did you mean 'inputs'?"),
        (
            {"inputs": "a", "max_new_tokens": 5},
            "unknown field 'max_new_tokens'; it belongs into 'parameters'",
        ),
        ([], "the body must be a JSON object, not a list"),
        (b"{", "the body is not valid JSON"),
    ],
)
def test_a_wrong_body_is_a_422(app: FastAPI, body: Any, text: str) -> None:
    for path in ("/", GENERATE, STREAM):
        assert text in refused(post(app, path, body), 422, "validation")


def test_what_goes_with_one_way_to_answer_alone(app: FastAPI) -> None:
    parameters = {"decoder_input_details": True}
    assert "streaming" in refused(ask(app, STREAM, **parameters), 422, "validation")
    assert "streaming" in refused(ask(app, STREAM, best_of=2, do_sample=True), 422, "validation")
    assert "stream" in refused(post(app, GENERATE, {"inputs": "a", "stream": True}), 422, "validation")


def test_the_doors_speak_tgi() -> None:
    app = create_app(FakeEngine(), ServerSettings(api_keys=("k",), max_body_bytes=200))
    for path in ("/", GENERATE, STREAM, "/chat_tokenize"):
        assert "key" in refused(post(app, path, {"inputs": "a"}), 401, "unauthorized")
        key = {"authorization": "Bearer k"}
        large = {"inputs": "a" * 10_000_000}
        assert "larger than 200" in refused(post(app, path, large, headers=key), 413, "validation")
    assert "no path" in refused(get(app, "/generate/x", headers=key), 404, "not_found")
    assert "does not take" in refused(get(app, GENERATE, headers=key), 405, "method_not_allowed")
    assert get(app, "/").status == 200
    assert "loading" in refused(post(create_app(None), "/", {"inputs": "a"}), 503, "overloaded")


def test_a_crowd_is_a_429_and_a_failed_step_a_424(engine: FakeEngine) -> None:
    from octavo.errors import EngineDeadError, OverloadedError, RequestFailedError

    app = create_app(engine)
    engine.full = OverloadedError("too many wait", 3)
    for path in ("/", GENERATE, STREAM):
        reply = ask(app, path)
        assert "too many" in refused(reply, 429, "overloaded")
        assert reply.headers["retry-after"] == "3"
    engine.full = EngineDeadError("a step raised")
    assert "reference" in refused(ask(app), 424, "generation")
    engine.full, engine.fail_after = None, (2, RequestFailedError("no memory for a step"))
    assert "reference" in refused(ask(app), 424, "generation")
    *before, last = events(ask(app, STREAM))
    assert [each["token"]["text"] for each in before] == ["H", "e"]
    assert last.keys() == {"error", "error_type"}
    assert last["error_type"] == "generation"


def test_a_request_cut_by_the_end_of_the_server_is_incomplete(engine: FakeEngine) -> None:
    engine.hold = asyncio.Event()

    async def cut() -> tuple[Reply, Reply]:
        app = create_app(engine)
        body = {"inputs": "Hi"}
        both = asyncio.gather(call(app, "POST", GENERATE, body), call(app, "POST", STREAM, body))
        while len(engine.calls) < 2:
            await asyncio.sleep(0.01)
        await engine.drain(1)
        one, other = await both
        return one, other

    whole, streamed = asyncio.run(cut())
    refused(whole, 500, "incomplete_generation")
    assert events(streamed)[-1]["error_type"] == "incomplete_generation"


def test_names_that_mean_whatever_is_served(app: FastAPI) -> None:
    for model in ({}, {"model": None}, {"model": "tgi"}, {"model": "dummy"}, {"model": "fake/model"}):
        chat = {"messages": [{"role": "user", "content": "Hi"}], **model}
        answer = post(app, "/v1/chat/completions", chat)
        assert (answer.status, answer.json()["model"]) == (200, "fake/model")
    other = post(app, "/v1/chat/completions", {**chat, "model": "other"})
    assert other.status == 404
    assert "--served-model-name" in other.error["message"]
    assert [each["id"] for each in get(app, "/v1/models").json()["data"]] == ["fake/model"]


def test_info_says_what_is_served_and_its_bounds(app: FastAPI, engine: FakeEngine) -> None:
    engine.facts["dtype"] = "Q4_1"
    info = get(app, "/info").json()
    assert (info["model_dtype"], info["model_device_type"]) == ("Q4_1", "cpu")
    assert info.keys() >= INFO
    assert (info["model_id"], info["max_total_tokens"], info["max_input_tokens"]) == ("fake/model", 128, 127)
    assert [get(app, path).status for path in ("/health", "/ping", "/metrics")] == [200] * 3
    assert "loading" in refused(get(create_app(None), "/info"), 503, "overloaded")


def test_prompts_are_bounded_where_the_launcher_says_so() -> None:
    """--max-input-tokens, whichever API is asked."""
    app = create_app(FakeEngine(), ServerSettings(max_input_tokens=5))
    assert get(app, "/info").json()["max_input_tokens"] == 5
    assert ask(app, inputs="12345").status == 200
    told = "inputs has 6 tokens; this server takes at most 5"
    assert refused(ask(app, inputs="123456"), 422, "validation") == told
    assert refused(ask(app, STREAM, inputs="123456"), 422, "validation") == told
    assert ask(app, inputs="123456", truncate=5).status == 200
    assert "truncate must be at most 5" in refused(ask(app, truncate=6), 422, "validation")
    reply = post(app, "/v1/completions", {"prompt": "123456"})
    assert (reply.status, reply.error["param"]) == (400, "prompt")
