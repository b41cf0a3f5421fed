"""What each API does with fields: obeyed, accepted without effect and said so, refused by name, unknown."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.server.app import create_app
from octavo.server.field_lists import KINDS, MAX_DEPTH, MAX_TEXT, MAX_VALUES
from octavo.server.field_tables import LISTS
from octavo.server.openai.body import Strict
from octavo.server.state import ServerSettings
from support.asgi import Reply, post
from support.fake_engine import Call, FakeEngine

HI = [{"role": "user", "content": "Hi"}]
FLAT = {"type": "function", "name": "f"}
THEIRS = {"name": "f", "input_schema": {"type": "object"}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ChatRequest": ("/v1/chat/completions", {"messages": HI, "seed": 1}),
    "CompletionRequest": ("/v1/completions", {"prompt": "Hi", "seed": 1}),
    "ResponsesRequest": ("/v1/responses", {"input": "Hi"}),
    "MessagesRequest": ("/v1/messages", {"messages": HI, "max_tokens": 50}),
    "CountTokensRequest": ("/v1/messages/count_tokens", {"messages": HI}),
    "EmbeddingRequest": ("/v1/embeddings", {"input": "Hi"}),
    "GenerateBody": ("/generate", {"inputs": "Hi"}),
    "GenerateParameters": ("/generate", {"inputs": "Hi"}),
}
VALUES = {"an object": {"a": "b"}, "a list": ["a"], "a string": "a", "true or false": True, "an integer": 3,
          "an object or a list": [{}]}  # fmt: skip
BLOCK = {"type": "text", "text": "Hi"}
MADE = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
GIVEN: dict[tuple[str, str], dict[str, Any]] = {
    ("", "user"): {"user": "a"},
    ("", "stream_options.include_obfuscation"): {
        "stream": True, "stream_options": {"include_obfuscation": False}
    },
    ("ResponsesRequest", "include"): {"include": ["reasoning.encrypted_content"]},
    ("ResponsesRequest", "input.caller"): {"input": [*HI, {**MADE, "caller": {"type": "direct"}}]},
    ("ResponsesRequest", "input.phase"): {"input": [{**HI[0], "phase": "commentary"}]},
    ("ResponsesRequest", "max_tool_calls"): {"max_tool_calls": 3},
    ("ResponsesRequest", "metadata"): {"metadata": {"a": "b"}},
    ("ResponsesRequest", "prompt_cache_key"): {"prompt_cache_key": "a"},
    ("ResponsesRequest", "reasoning"): {"reasoning": {"effort": "high", "summary": "auto"}},
    ("ResponsesRequest", "safety_identifier"): {"safety_identifier": "a"},
    ("ResponsesRequest", "service_tier"): {"service_tier": "flex"},
    ("ResponsesRequest", "text.verbosity"): {"text": {"verbosity": "low"}},
    ("ResponsesRequest", "tools.type"): {"tools": [{"type": "web_search", "external_web_access": False}]},
    ("ResponsesRequest", "truncation"): {"truncation": "auto"},
    ("", "messages.cache_control"): {
        "messages": [{"role": "user", "content": [{**BLOCK, "cache_control": {}}]}]
    },
    ("", "messages.citations"): {"messages": [{"role": "user", "content": [{**BLOCK, "citations": []}]}]},
    ("", "messages.caller"): {"messages": [*HI, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}}]}]},
    ("", "output_config.effort"): {"output_config": {"effort": "high"}},
    ("", "system.cache_control"): {"system": [{**BLOCK, "cache_control": {"type": "ephemeral"}}]},
    ("MessagesRequest", "tools.type"): {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
}  # fmt: skip
SAME = {"CountTokensRequest": "MessagesRequest"}


def holding(model: str, name: str) -> dict[str, Any]:
    """Fields of a request that ask for an ignored field."""
    kind = LISTS[model].ignored[name].kind
    if kind:
        return {name: VALUES[kind]}
    outer, _, inner = name.partition(".")
    found = GIVEN.get((SAME.get(model, model), name), GIVEN.get(("", name)))
    if found is None:  # a member of a tool
        assert outer == "tools"
        return {"tools": [{**THEIRS, inner: True}]}
    return found


IGNORED = [(model, name) for model, lists in LISTS.items() for name in lists.ignored]
REFUSED = [(model, name) for model, lists in LISTS.items() for name in lists.refused]


def ask(app: FastAPI, model: str, **fields: Any) -> Reply:
    path, body = BODIES[model]
    return post(app, path, {**body, **({"parameters": fields} if model == "GenerateParameters" else fields)})


def refusal(reply: Reply) -> str:
    """Why it was a 400, or a 422 of the API that has these."""
    error = reply.json()["error"]
    assert reply.status == (422 if isinstance(error, str) else 400)
    return str(error if isinstance(error, str) else error["message"])


def content(reply: Reply) -> Any:
    """An answer without what differs from one to the next."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        return [event["choices"] for event in reply.events()]
    body = reply.json()
    own = ("choices", "content", "data", "input_tokens", "generated_text")
    if "output" in body:
        return [item["content"] for item in body["output"]]
    return {name: body[name] for name in own if name in body}


def test_every_request_has_its_lists() -> None:
    create_app(FakeEngine())
    models = {each.__name__ for each in subclasses(Strict) if each.__module__.startswith("octavo.server.")}
    own = {name for name in models if name.endswith("Request")} - {"GenerationRequest"}
    assert own - set(LISTS) == {"TokenizeRequest", "DetokenizeRequest"}
    assert set(LISTS) == set(BODIES)


def subclasses(cls: type) -> set[type]:
    below: list[type] = cls.__subclasses__()
    return set(below).union(*map(subclasses, below))


@pytest.mark.parametrize(("model", "name"), IGNORED)
def test_what_has_no_effect_is_said_and_changes_nothing(model: str, name: str) -> None:
    engine = FakeEngine()
    app = create_app(engine)
    fields = holding(model, name)
    reply = ask(app, model, **fields)
    assert reply.status == 200, reply.body
    named = reply.headers["x-octavo-ignored"].split(", ")
    assert any(one == name or one.startswith((f"{name}=", f"{name}.")) for one in named), named
    plain = ask(app, model, **without(fields, name))
    assert "x-octavo-ignored" not in plain.headers
    assert content(reply) == content(plain)
    before, after = engine.calls or [None, None]  # type: ignore[list-item]
    assert before is after is None or asked(before) == asked(after)


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The same fields, but for the one that is ignored; where it is a tool's type, without that tool."""
    outer, _, inner = name.partition(".")
    if not inner:
        return {key: value for key, value in fields.items() if key != outer}
    if name == "tools.type":
        return {**fields, "tools": []}
    return {**fields, outer: stripped(fields[outer], inner)}


def stripped(value: Any, name: str) -> Any:
    """A JSON value without the members of this name."""
    if isinstance(value, dict):
        return {key: stripped(member, name) for key, member in value.items() if key != name}
    if not isinstance(value, list):
        return value
    members: list[Any] = value
    return [stripped(member, name) for member in members]


def asked(call: Call) -> tuple[Any, ...]:
    """All that the engine is asked: from equal ones it makes equal bits."""
    return call.prompt, call.params, call.priority, call.cache_salt


LETTERS = st.text("abcxyz-", max_size=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | LETTERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LETTERS, inner, max_size=3),
    max_leaves=9,
)
OBJECT, LIST = st.dictionaries(LETTERS, JSON, max_size=4), st.lists(JSON, max_size=4)
ANY: dict[str, st.SearchStrategy[Any]] = {
    "an object": OBJECT, "a list": LIST, "a string": LETTERS, "true or false": st.booleans(),
    "an integer": st.integers(), "an object or a list": OBJECT | LIST,
}  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_fields_without_effect_hold_the_engine_is_asked_the_same(data: st.DataObject) -> None:
    """Any of them together, with any value of their type."""
    takers = {name for name, lists in LISTS.items() if any(one.kind for one in lists.ignored.values())}
    model = data.draw(st.sampled_from(sorted(takers)), "request")
    kinds = {name: one.kind for name, one in LISTS[model].ignored.items() if one.kind}
    names = data.draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, unique=True), "fields")
    fields = {name: data.draw(ANY[kinds[name]], name) for name in names}
    engine = FakeEngine()
    app = create_app(engine)
    reply, plain = ask(app, model, **fields), ask(app, model)
    assert (reply.status, plain.status) == (200, 200), reply.body
    assert set(reply.headers["x-octavo-ignored"].split(", ")) == set(names)
    assert content(reply) == content(plain)
    assert len({str(asked(call)) for call in engine.calls}) <= 1


@pytest.mark.parametrize(
    ("model", "name"), [each for each in IGNORED if LISTS[each[0]].ignored[each[1]].kind]
)
def test_of_another_type_it_is_a_400(app: FastAPI, model: str, name: str) -> None:
    kind = LISTS[model].ignored[name].kind
    wrong: Any = 5.5
    reply = ask(app, model, **{name: wrong})
    assert f"{name} must be {kind}, not a number" in refusal(reply)
    large: dict[type, Any] = {
        dict: {"a": ["b"] * MAX_VALUES},
        list: ["b"] * (MAX_VALUES + 1),
        str: "x" * (MAX_TEXT + 1),
    }
    for each in KINDS[kind]:
        if each in large:
            reply = ask(app, model, **{name: large[each]})
            assert name in refusal(reply)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


DEEP = [each for each in IGNORED if {dict, list} & {*KINDS.get(LISTS[each[0]].ignored[each[1]].kind, ())}]


@pytest.mark.parametrize(("model", "name"), DEEP)
def test_what_is_nested_deeply_is_refused_by_name(app: FastAPI, model: str, name: str) -> None:
    kind = KINDS[LISTS[model].ignored[name].kind]
    for depth, status in ((MAX_DEPTH, 200), (MAX_DEPTH + 1, 400)):
        value: Any = nested(depth) if list in kind else {"a": nested(depth - 1)}
        reply = ask(app, model, **{name: value})
        if status == 400:
            assert f"{name} is nested deeper than {MAX_DEPTH}" in refusal(reply)
        else:
            assert reply.status == 200, reply.body


@pytest.mark.parametrize(
    "inside", [nested(100), "x" * 100_000, [{"a": 1}] * 10_000], ids=["deep", "long", "many"]
)
def test_advice_inside_of_messages_and_tools_is_dropped_unread(inside: Any) -> None:
    """However large: a body's own bounds are enough for what nobody looks at."""
    advised = {"cache_control": {"type": "ephemeral", "x": inside}}
    engine = FakeEngine()
    app = create_app(engine)
    for more in (advised, {}):
        blocks = [{**BLOCK, **more}]
        fields = {"messages": [{"role": "user", "content": blocks}], "system": blocks}
        reply = ask(app, "MessagesRequest", **fields, tools=[{**THEIRS, **more}])
        assert (reply.status, "x-octavo-ignored" in reply.headers) == (200, bool(more)), reply.body
    assert len({str(asked(call)) for call in engine.calls}) == 1
    assert engine.rendered[0] == engine.rendered[1]


@pytest.mark.parametrize(("model", "name"), REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(app: FastAPI, model: str, name: str) -> None:
    refused = LISTS[model].refused[name]
    reply = ask(app, model, **{name: {"some": "thing"}})
    assert f"{name} is not supported: {refused.why}" in refusal(reply)
    for neutral in (None, *refused.neutral):
        reply = ask(app, model, **{name: neutral})
        assert (reply.status, "x-octavo-ignored" in reply.headers) == (200, False)


@pytest.mark.parametrize("model", BODIES)
def test_unknown_fields_are_refused_or_named(model: str, caplog: pytest.LogCaptureFixture) -> None:
    reply = ask(create_app(FakeEngine()), model, wat=1)
    assert "unknown field 'wat'" in refusal(reply)
    lenient = create_app(FakeEngine(), ServerSettings(strict_fields=False))
    with caplog.at_level(logging.DEBUG, "octavo.server"):
        reply = ask(lenient, model, **{"wat": 1, "more\r\nx: y": 2})
    assert (reply.status, reply.headers["x-octavo-ignored"]) == (200, "wat, morex:y")
    assert "accepted without effect: wat" in caplog.text


def test_unknown_members_of_tools_are_refused_or_named() -> None:
    tools = [{**THEIRS, "bogus": 1}]
    assert ask(create_app(FakeEngine()), "MessagesRequest", tools=tools).status == 400
    lenient = create_app(FakeEngine(), ServerSettings(strict_fields=False))
    assert ask(lenient, "MessagesRequest", tools=tools).headers["x-octavo-ignored"] == "tools.bogus"


def test_the_header_is_bounded() -> None:
    lenient = create_app(FakeEngine(), ServerSettings(strict_fields=False))
    reply = ask(lenient, "ChatRequest", **{f"{'x' * 200}{i}": i for i in range(1000)})
    assert reply.status == 200
    assert len(reply.headers["x-octavo-ignored"]) <= 32 * 82


def test_large_bodies_are_read_in_a_thread_and_noted_all_the_same(app: FastAPI) -> None:
    reply = ask(
        app, "ChatRequest", store=True, messages=[{"role": "user", "content": "a "}], stop=["x" * 30_000]
    )
    assert reply.status == 400
    reply = ask(app, "ChatRequest", store=True, metadata={str(i): "x" * 4000 for i in range(8)})
    assert reply.headers["x-octavo-ignored"] == "store, metadata"


def test_an_effort_goes_to_a_template_that_reads_it(app: FastAPI, engine: FakeEngine) -> None:
    engine.template = "{{ reasoning_effort }}"
    for model, fields in (
        ("ChatRequest", {"reasoning_effort": "low"}),
        ("ResponsesRequest", {"reasoning": {"effort": "low"}}),
        ("MessagesRequest", {"output_config": {"effort": "low"}}),
    ):
        assert "x-octavo-ignored" not in ask(app, model, **fields).headers
        assert engine.rendered[-1]["kwargs"] == {"reasoning_effort": "low"}
    for wrong in (5, "", "x" * 30):
        assert ask(app, "ChatRequest", reasoning_effort=wrong).status == 400


def test_cache_prompt_false_shares_nothing(app: FastAPI, engine: FakeEngine) -> None:
    for value in (False, False, True):
        assert ask(app, "ChatRequest", cache_prompt=value).status == 200
    first, second, third = [each.cache_salt for each in engine.calls]
    assert first
    assert second not in (None, first)
    assert third is None
    ask(app, "ChatRequest", cache_prompt=False, cache_salt="mine")
    assert engine.calls[-1].cache_salt == "/mine"
    assert ask(app, "ChatRequest", cache_prompt="no").status == 400
