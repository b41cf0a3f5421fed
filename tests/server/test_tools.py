"""Tools over HTTP: what reaches the engine, and how its answers come back."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI

from octavo.server.app import create_app
from octavo.server.state import ServerSettings
from support.asgi import Reply, post
from support.fake_engine import FakeEngine

PATH = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "?", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def ask(app: FastAPI, **fields: Any) -> Reply:
    return post(app, PATH, {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, **fields})


def streamed(reply: Reply) -> tuple[dict[str, Any], str]:
    """(the deltas put together as clients do, finish reason)."""
    whole: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
    reason = ""
    for event in reply.events():
        choice = event["choices"][0]
        delta = choice["delta"]
        whole["content"] += delta.get("content") or ""
        whole["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            known = whole["tool_calls"].setdefault(call["index"], {"name": "", "arguments": ""})
            known["name"] += call["function"].get("name") or ""
            known["arguments"] += call["function"].get("arguments") or ""
        reason = choice["finish_reason"] or reason
    return whole, reason


def test_the_template_gets_the_tools_and_calls_come_back(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = f"I look.\n{CALL}"
    choice = ask(app).json()["choices"][0]
    assert engine.rendered[0]["tools"] == TOOLS
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Köln"}'}
    whole, reason = streamed(ask(app, stream=True))
    assert whole["content"] == "I look."
    assert whole["tool_calls"] == {0: call["function"]}
    assert reason == "tool_calls"


def test_without_calls_an_answer_is_plain(app: FastAPI, engine: FakeEngine) -> None:
    choice = ask(app).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert engine.calls[0].params.structured_outputs is None


def test_tool_choice_none_hides_the_tools(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = CALL
    choice = ask(app, tool_choice="none").json()["choices"][0]
    assert "tools" not in engine.rendered[0]
    assert choice["message"]["content"] == CALL


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_are_made_by_a_grammar(app: FastAPI, engine: FakeEngine, parallel: bool) -> None:
    engine.reply = '[{"name": "weather", "arguments": {"city": "Köln"}}, {"name": "now", "arguments": {}}]'
    choice = ask(app, tool_choice="required", parallel_tool_calls=parallel).json()["choices"][0]
    wanted = engine.calls[0].params.structured_outputs
    assert wanted is not None
    assert isinstance(wanted.json, dict)
    one = [{"name": "weather", "arguments": {"city": "x"}}]
    jsonschema.validate(one, wanted.json)
    for wrong in ([], [{"name": "weather", "arguments": {}}], [{"name": "x", "arguments": {}}]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, wanted.json)
    assert jsonschema.Draft202012Validator(wanted.json).is_valid(one * 2) is parallel
    assert len(choice["message"]["tool_calls"]) == (2 if parallel else 1)
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("max_tokens", "arguments"),
    [(20, ""), (45, '{"city": "P'), (51, '{"city": "Paris"}'), (52, '{"city": "Paris"}')],
)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_is_cut_comes_as_far_as_it_was_written(
    app: FastAPI, engine: FakeEngine, stream: bool, max_tokens: int, arguments: str, choice: Any
) -> None:
    engine.reply = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
    reply = ask(app, tool_choice=choice, max_tokens=max_tokens, stream=stream)
    if stream:
        whole, reason = streamed(reply)
        call, content = whole["tool_calls"][0], whole["content"]
    else:
        found = reply.json()["choices"][0]
        call, content = found["message"]["tool_calls"][0]["function"], found["message"]["content"] or ""
        reason = found["finish_reason"]
    assert (call, content) == ({"name": "weather", "arguments": arguments}, "")
    assert reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_amid_a_call_is_no_call_to_be_made(
    app: FastAPI, engine: FakeEngine, stream: bool
) -> None:
    """What was written of it comes, and the reason is the stop, not tool_calls."""
    engine.reply = '[{"name": "weather", "arguments": {"'
    reply = ask(app, tool_choice="required", stream=stream)
    reason = streamed(reply)[1] if stream else reply.json()["choices"][0]["finish_reason"]
    assert reason == "stop"


@pytest.mark.parametrize(("given", "taken"), [({}, False), ({"parameters": {}}, True)])
def test_a_function_without_parameters_takes_none(
    app: FastAPI, engine: FakeEngine, given: dict[str, Any], taken: bool
) -> None:
    tools = [{"type": "function", "function": {"name": "now", **given}}]
    engine.reply = '[{"name": "now", "arguments": {}}]'
    assert ask(app, tools=tools, tool_choice="required").status == 200
    wanted = engine.calls[0].params.structured_outputs
    assert wanted is not None
    judge = jsonschema.Draft202012Validator(wanted.json)
    assert judge.is_valid([{"name": "now", "arguments": {}}])
    assert judge.is_valid([{"name": "now", "arguments": {"time": 1}}]) is taken


def test_a_named_tool_is_the_only_one(app: FastAPI, engine: FakeEngine) -> None:
    engine.reply = '[{"name": "now", "arguments": {}}]'
    choice = ask(app, tool_choice={"type": "function", "function": {"name": "now"}}).json()["choices"][0]
    wanted = engine.calls[0].params.structured_outputs
    assert wanted is not None
    assert not jsonschema.Draft202012Validator(wanted.json).is_valid(
        [{"name": "weather", "arguments": {"city": "x"}}]
    )
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "now"
    assert choice["finish_reason"] == "stop"


def test_strict_tools_constrain_only_calls(app: FastAPI, engine: FakeEngine) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}]
    assert ask(app, tools=tools).status == 200
    wanted = engine.calls[0].params.structured_outputs
    assert wanted is not None
    assert wanted.kind == "structural_tag"
    engine.template = "[TOOL_CALLS]"
    reply = ask(app, tools=tools)
    assert reply.status == 400
    assert "mistral" in reply.error["message"]


def test_formats_of_control_tokens_see_them(app: FastAPI, engine: FakeEngine) -> None:
    engine.template = "[TOOL_CALLS]"
    ask(app)
    assert engine.calls[0].params.skip_special_tokens is False


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_a_member_of_its_own(app: FastAPI, engine: FakeEngine, stream: bool) -> None:
    engine.template = "{{ '</think>' }}"
    engine.reply = f"<think>\nHm.\n</think>\n\nSo.\n{CALL}"
    reply = ask(app, stream=stream)
    whole = streamed(reply)[0] if stream else reply.json()["choices"][0]["message"]
    assert whole["reasoning_content"] == "Hm."
    assert whole["content"] == "So."
    assert len(whole["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"tools": 5}, "tools", "must be a list"),
        ({"tools": [5]}, "tools", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "two functions"),
        ({"tools": [TOOLS[1]] * 200}, "tools", "at most 128"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": 3}}]}, "tools", "strict"),
        ({"tool_choice": "sometimes"}, "tool_choice", "must be none"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "not among"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "needs tools"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "exclude"),
        ({"tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "a", "parameters": {"enum": 1}}}]}, "tools", "enum"),
    ],
)  # fmt: skip
def test_bad_tools_are_refused_by_name(app: FastAPI, fields: dict[str, Any], param: str, text: str) -> None:
    reply = ask(app, **fields)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert text in reply.error["message"]


def test_the_servers_flags_name_the_formats(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(tool_call_parser="pythonic", reasoning_parser="deepseek_r1"))
    engine.reply = "Hm.</think>[weather(city='Köln')]"
    message = ask(app).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Köln"}'


def test_reasoning_in_control_tokens_is_kept_in_the_text(engine: FakeEngine) -> None:
    app = create_app(engine, ServerSettings(reasoning_parser="mistral"))
    engine.reply = "[THINK]Hm.[/THINK]Yes."
    message = ask(app).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    assert engine.calls[0].params.skip_special_tokens is False
