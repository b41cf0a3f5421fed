"""What a body costs: errors that end at the first, bounds on every list, work that grows with its size."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from octavo.errors import InvalidRequestError
from octavo.server.anthropic.protocol import MessagesRequest
from octavo.server.app import create_app
from octavo.server.errors import ApiError
from octavo.server.openai import body as bodies
from octavo.server.openai.body import LONG_TEXT, alone, off_loop, parse
from octavo.server.openai.chat import ChatRequest
from octavo.server.openai.completions import CompletionRequest
from octavo.server.openai.embeddings import EmbeddingRequest
from octavo.server.openai.prompts import MAX_CUT
from octavo.server.openai.responses_input import ResponsesRequest, input_messages
from octavo.server.openai.shapes import MANY, MAX_SCHEMA, MAX_VARIABLES, holds_more
from octavo.server.openai.tokens import DetokenizeRequest, TokenizeRequest
from support.asgi import Reply, call, get, post
from support.fake_engine import FakeEngine
from support.growth import LINEAR, growth

HI = [{"role": "user", "content": "Hi"}]
WRONG: list[tuple[type[BaseModel], dict[str, Any], str]] = [
    (DetokenizeRequest, {}, "tokens"),
    (CompletionRequest, {"prompt": "a"}, "stop_token_ids"),
    (CompletionRequest, {"prompt": "a"}, "allowed_token_ids"),
    (CompletionRequest, {"prompt": "a"}, "guided_choice"),
    (CompletionRequest, {"prompt": "a"}, "stop"),
    (CompletionRequest, {"prompt": "a"}, "bad_words"),
    (CompletionRequest, {}, "prompt"),
    (EmbeddingRequest, {}, "input"),
    (MessagesRequest, {"messages": HI, "max_tokens": 1}, "stop_sequences"),
]


def refused(model: type[BaseModel], fields: dict[str, Any]) -> tuple[str, int]:
    """(the error, the most bytes that Python's objects took while it was found)."""
    data = json.dumps(fields).encode()
    with pytest.raises(
        InvalidRequestError
    ):  # what the first of a process takes once, as a model's validator, is no body's
        parse(model, data)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError) as caught:
            parse(model, data)
        return str(caught.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("model", "fields", "name"), WRONG)
@pytest.mark.parametrize("count", [10, 50_000])
def test_type_errors_end_at_the_first(
    model: type[BaseModel], fields: dict[str, Any], name: str, count: int
) -> None:
    """One error object for each member would take 600 bytes for each three of the body."""
    error, taken = refused(model, fields | {name: [[1, ""]] * count})
    assert error.startswith(name)
    assert len(error) < 300
    assert taken < 100_000 + 400 * count, "what the lists of the body take themselves"


@pytest.mark.parametrize(
    ("model", "fields", "text"),
    [
        (CompletionRequest, {"prompt": [1] * ((1 << 20) + 1)}, "prompt takes at most 1048576 members"),
        (DetokenizeRequest, {"tokens": [1] * ((1 << 20) + 1)}, "tokens takes at most 1048576 ids"),
        (CompletionRequest, {"stop": ["a"] * 65}, "stop takes at most 64 strings"),
        (CompletionRequest, {"stop_token_ids": [1] * 4097}, "stop_token_ids takes at most 4096 ids"),
        (CompletionRequest, {"allowed_token_ids": [1] * 300_001}, "takes at most 300000 ids"),
        (CompletionRequest, {"bad_words": ["a"] * 257}, "bad_words takes at most 256 words"),
        (CompletionRequest, {"guided_choice": ["a"] * (MANY + 1)}, "takes at most 65536 members"),
        (CompletionRequest, {"logit_bias": {str(i): 1 for i in range(1025)}}, "takes at most 1024 tokens"),
        (CompletionRequest, {"stream_options": {str(i): 1 for i in range(50_000)}}, "unknown field"),
        (CompletionRequest, {"structured_outputs": {str(i): 1 for i in range(17)}}, "at most 16 members"),
        (CompletionRequest, {"guided_json": {"a": [0] * MAX_SCHEMA}}, "takes at most 100000 values"),
        (CompletionRequest, {"response_format": {"a": [0] * MAX_SCHEMA}}, "takes at most 100000 values"),
        (ChatRequest, {"messages": HI * (MANY + 1)}, "messages: list should have at most 65536 items"),
        (ChatRequest, {"messages": HI, "tools": [[0] * MAX_SCHEMA]}, "takes at most 100000 values"),
        (ChatRequest, {"messages": HI, "chat_template_kwargs": {"a": [0] * MAX_VARIABLES}}, "at most 1024"),
        (TokenizeRequest, {"chat_template_kwargs": {"a": [0] * MAX_VARIABLES}}, "at most 1024 values"),
        (ResponsesRequest, {"input": [{}] * (MANY + 1)}, "input takes at most 65536 items"),
        (ResponsesRequest, {"input": "a", "metadata": {str(i): "" for i in range(17)}}, "at most 16 pairs"),
        (ResponsesRequest, {"input": "a", "metadata": {"a": [[]] * 9}}, "texts of at most 512"),
        (ResponsesRequest, {"input": "a", "metadata": {"a": "b" * 513}}, "texts of at most 512"),
        (ResponsesRequest, {"input": "a", "metadata": {"a" * 65: "b"}}, "names of at most 64"),
        (MessagesRequest, {"max_tokens": 1, "messages": HI * (MANY + 1)}, "at most 65536 messages"),
        (MessagesRequest,
         {"max_tokens": 1, "messages": HI, "output_config": {str(i): 0 for i in range(100_001)}},
         "output_config takes at most 100000 values"),
    ],
)  # fmt: skip
def test_every_list_is_bounded(model: type[BaseModel], fields: dict[str, Any], text: str) -> None:
    if model is CompletionRequest:
        fields = {"prompt": "a", **fields}
    error, _ = refused(model, fields)
    assert text in error


@pytest.mark.parametrize(
    "most",
    [0, 1, 5, 6, 7, 1000],
)
def test_values_are_counted_with_those_inside(most: int) -> None:
    assert holds_more({"a": [1, 2, {"b": []}], "c": None}, most) is (most < 7)
    assert holds_more("text" * 1000, most) is (most < 1)


def test_one_large_body_is_parsed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects take many times the bytes that say them: six bodies at once would take that six times."""
    running, most = 0, 0
    lock, go_on = threading.Lock(), threading.Event()

    def counted(model: type[Any], data: bytes) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go_on.wait(0.02)
        try:
            return parse(model, data)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(bodies, "parse", counted)

    async def several() -> list[Reply]:
        app, body = create_app(FakeEngine()), {"prompt": "a", "user": "a" * 30_000}
        return await asyncio.gather(*[call(app, "POST", "/v1/completions", body) for _ in range(6)])

    assert [reply.status for reply in asyncio.run(several())] == [200] * 6
    assert most == 1


def test_huge_texts_are_worked_on_one_at_a_time() -> None:
    """Each takes 150 bytes a character meanwhile."""
    running, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with lock:
            running -= 1

    async def several(size: int) -> None:
        await asyncio.gather(*(off_loop(size, work) for _ in range(4)))

    asyncio.run(several(10 * LONG_TEXT + 1))
    assert most == 1
    asyncio.run(several(10 * LONG_TEXT))
    assert most > 1, "others are worked on side by side"


@pytest.mark.parametrize(
    ("text", "status"), [("a" * MAX_CUT, 200), ("a" * (MAX_CUT + 1), 400), ("\u20ac" * 400_000, 400)]
)
@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")])
def test_a_text_that_is_cut_is_bounded_too(
    app: FastAPI, path: str, field: str, text: str, status: int
) -> None:
    reply = post(app, path, {field: text, "truncate_prompt_tokens": 5})
    assert reply.status == status
    if status == 400:
        assert reply.error["param"] == field
        assert f"at most {MAX_CUT} bytes" in reply.error["message"]


def test_the_collector_does_not_look_at_a_body_in_the_making() -> None:
    """Each of its passes stops every thread, and a body of lists brings hundreds of them."""
    passes: list[str] = []

    def noted(phase: str, info: dict[str, int]) -> None:
        passes.append(phase)

    async def read() -> None:
        body = b'{"messages":[' + b",".join([b"[]"] * 50_000) + b"]}"
        gc.callbacks.append(noted)
        try:
            passes.clear()
            parse(ChatRequest, body)
            assert passes, "what parses on its own is interrupted"
            passes.clear()
            await alone(len(body), parse, ChatRequest, body)
            assert len(passes) < 10
            assert gc.isenabled()
        finally:
            gc.callbacks.remove(noted)

    asyncio.run(read())


def test_a_refused_body_is_gone_with_its_refusal(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error keeps the frames in which the body's objects are."""
    held: list[BaseException] = []
    init = ApiError.__init__

    def noted(self: ApiError, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        held.append(self)

    monkeypatch.setattr(ApiError, "__init__", noted)
    assert post(app, "/detokenize", {"tokens": [""] * 10_000}).status == 400
    assert held[0].__context__ is None
    assert held[0].__cause__ is None


def test_what_a_refusal_kept_ends_beside_the_loop() -> None:
    """A million texts take tens of milliseconds to free, and whoever frees them holds the lock."""
    ended: list[str] = []

    class Kept(set[int]):
        def __del__(self) -> None:
            ended.append(threading.current_thread().name)

    def refuse() -> None:
        body = Kept()
        try:
            raise ValueError(body)
        except ValueError:
            raise InvalidRequestError(f"a body of {len(body)}") from None

    with pytest.raises(InvalidRequestError, match="a body of 0"):
        asyncio.run(alone(LONG_TEXT + 1, refuse))
    assert len(ended) == 1
    assert ended[0].startswith("large-bodies")


def calls(count: int) -> list[dict[str, Any]]:
    return [{"type": "function_call", "name": "a"}] * count


def test_function_calls_cost_in_proportion_to_their_number() -> None:
    assert growth(lambda count: input_messages(calls(count)), 8_000) < LINEAR


def test_function_calls_in_a_row_are_one_message() -> None:
    first, second, third = input_messages([*calls(3), {"role": "user", "content": "a"}, *calls(1)])
    assert [len(first["tool_calls"]), second["role"], len(third["tool_calls"])] == [3, "user", 1]


THREADS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ["a" * 11_000, "b" * 11_000], "truncate_prompt_tokens": 5, "echo": True}),
    ("/v1/embeddings", {"input": ["a" * 11_000, "b" * 11_000], "truncate_prompt_tokens": 5}),
    ("/tokenize", {"prompt": "a" * 21_000, "return_token_strs": True}),
    ("/detokenize", {"tokens": [97] * 21_000}),
    ("/v1/responses", {"input": [{"role": "user", "content": "a" * 21_000}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a" * 21_000}], "max_tokens": 1}),
]


@pytest.mark.parametrize(("path", "fields"), THREADS)
def test_long_texts_are_never_worked_on_by_the_loop(
    path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever encodes or decodes in all more than LONG_TEXT does so in another thread."""
    engine = FakeEngine(max_model_len=30_000)
    seen: list[str] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args[0]) > 5_000:
                seen.append(threading.current_thread().name)
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(engine.tokenizer, "encode", noted(engine.tokenizer.encode))
    monkeypatch.setattr(engine.tokenizer, "decode", noted(engine.tokenizer.decode))
    from octavo.server.app import create_app

    assert post(create_app(engine), path, fields).status == 200
    assert seen
    assert threading.main_thread().name not in seen


def test_a_token_that_is_none_is_refused_before_texts_are_encoded(
    app: FastAPI, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*args: object, **kwargs: object) -> list[int]:
        raise AssertionError("a text was encoded")

    monkeypatch.setattr(engine.tokenizer, "encode", encode)
    for named in ({"logit_bias": {"99999999": 1}}, {"allowed_token_ids": [99999999]}):
        reply = post(app, "/v1/completions", {"prompt": ["a"] * 9, "max_tokens": 1, **named})
        assert reply.status == 400, named
        assert "99999999" in reply.error["message"]


def test_a_stored_conversation_counts_where_it_is_gone_on_with(engine: FakeEngine, app: FastAPI) -> None:
    engine.max_model_len = 60_000
    told = post(app, "/v1/responses", {"input": "a" * 21_000}).json()["id"]
    threads: list[str] = []
    render = engine.render_chat

    def noted(*args: Any, **kwargs: Any) -> list[int]:
        threads.append(threading.current_thread().name)
        return render(*args, **kwargs)

    engine.render_chat = noted  # type: ignore[method-assign]
    assert post(app, "/v1/responses", {"input": "b", "previous_response_id": told}).status == 200
    assert threads != [threading.main_thread().name]


def test_what_is_tokenized_says_the_same_text_once(app: FastAPI, engine: FakeEngine) -> None:
    asked: list[int] = []
    token_bytes = engine.tokenizer.token_bytes
    engine.tokenizer.token_bytes = lambda i: (asked.append(i), token_bytes(i))[1]  # type: ignore
    engine.max_model_len = 1000
    answer = post(app, "/tokenize", {"prompt": "ab" * 200, "return_token_strs": True}).json()
    assert answer["token_strs"] == ["a", "b"] * 200
    assert answer["count"] == 400
    assert sorted(asked) == [97, 98]


def test_stored_responses_are_kept_as_bytes(app: FastAPI) -> None:
    """As objects a response takes up to twenty times as much as its JSON."""
    items = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}] * 10
    name = post(app, "/v1/responses", {"input": items, "metadata": {"a": "b"}}).json()["id"]
    store = app.state.octavo.kept["responses"]
    stored = store.get("", name)
    assert type(stored.body) is bytes
    assert type(stored.messages) is bytes
    assert store.nbytes == len(stored.body) + len(stored.messages)
    assert json.loads(stored.body)["metadata"] == {"a": "b"}


def test_the_largest_owner_makes_room_in_the_store() -> None:
    from octavo.server.store import ResponseStore, Stored

    store = ResponseStore(most=4, most_bytes=100)
    store.put("quiet", "first", Stored(b"", b"." * 30))
    for number in range(50):
        store.put("loud", str(number), Stored(b"", b"." * 20))
    assert store.get("quiet", "first") is not None
    assert store.get("loud", "49") is not None
    assert store.nbytes <= 100
    assert len(store) <= 4
    assert store.remove("loud", "49")
    assert not store.remove("loud", "49")


def test_many_small_responses_push_out_no_large_one_of_another_owner() -> None:
    from octavo.server.store import ResponseStore, Stored

    store = ResponseStore(most=4, most_bytes=1_000_000)
    store.put("quiet", "first", Stored(b"", b"." * 500))
    for number in range(10):
        store.put("loud", str(number), Stored(b"", b"."))
    assert store.get("quiet", "first") is not None
    assert len(store) == 4


def test_metrics_are_written_beside_the_loop(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    metrics = app.state.octavo.metrics
    render = metrics.render
    monkeypatch.setattr(
        metrics, "render", lambda: (threads.append(threading.current_thread().name), render())[1]
    )
    assert get(app, "/metrics").status == 200
    assert threads
    assert threading.main_thread().name not in threads
