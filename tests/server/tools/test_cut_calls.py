# ruff: noqa: RUF001 (the markers are written with these very characters)
"""Calls that max_tokens has cut, at every place: as far as they were written, streamed as whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.server.app import create_app
from octavo.server.tools import FORMATS, ToolCall, ToolFormat, ToolParser
from support.asgi import post
from support.fake_engine import FakeEngine

TOOLS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {"type": "object"},
}
D = [f"<｜tool▁{word}｜>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")]
GIVEN = {"city": "Köln <b> {", "days": 2}
J = json.dumps(GIVEN, ensure_ascii=False)

# (format, the text of now() and weather(GIVEN))
CASES = [
    ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
     f'<tool_call>\n{{"name": "weather", "arguments": {J}}}\n</tool_call>'),
    ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=weather>\n<parameter=city>\nKöln <b> {\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
     "</function>\n</tool_call>"),
    ("llama3_json",
     f'<|python_tag|>{{"name": "now", "parameters": {{}}}};{{"name": "weather", "parameters": {J}}}'),
    ("mistral", f"[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]weather[ARGS]{J}"),
    ("mistral",
     f'[TOOL_CALLS][{{"name": "now", "arguments": {{}}}}, {{"name": "weather", "arguments": {J}}}]'),
    ("deepseek_v3", f"{D[0]}{D[1]}now{D[2]}{{}}{D[3]}{D[1]}weather{D[2]}{J}{D[3]}{D[4]}"),
    ("deepseek_v3", f"{D[0]}{D[1]}function{D[2]}now\n```json\n{{}}\n```{D[3]}\n"
     f"{D[1]}function{D[2]}weather\n```json\n{J}\n```{D[3]}{D[4]}"),
    ("pythonic", "<|python_start|>[now(), weather(city='Köln <b> {', days=2)]<|python_end|>"),
    ("pythonic", "<|python_start|>\n[now(), weather( city = 'K\\u00f6ln \\x3cb> {',\n days=2,)]"),
]  # fmt: skip


def read(form: ToolFormat, pieces: list[str], cut: bool = True) -> tuple[str, list[ToolCall]]:
    parser = ToolParser(form, TOOLS)
    parts = [parser.feed(piece) for piece in pieces] + [parser.finish(cut)]
    return "".join(part.text for part in parts), [call for part in parts for call in part.calls]


def opened(text: str) -> Any:
    """An object whose end is missing, where it is cut behind a value or in the last string."""
    for end in ("", "}", '"}', "null}", ": null}", '": null}', '"": null}'):
        try:
            return json.loads(text.rstrip(", ") + end if end == "}" else text + end)
        except ValueError:
            continue
    raise AssertionError(text)


@pytest.mark.parametrize(("name", "text"), CASES)
def test_at_every_place(name: str, text: str) -> None:
    """No markup is content; arguments are a beginning of what was meant, and grow as the text does."""
    form = FORMATS[name]
    marker = next(mark for mark in sorted(form.start, key=len, reverse=True) if text.startswith(mark))
    length = 0
    for size in range(len(marker), len(text) + 1):
        said, calls = read(form, [text[:size]])
        assert (said, calls) == read(form, list(text[:size]))
        if not any(text[:size].endswith(marker[:n]) for n in range(1, len(marker))):
            assert said == "", text[:size]
        assert [call.name for call in calls] == ["now", "weather"][: len(calls)]
        assert len(calls) >= length
        length = len(calls)
        if len(calls) == 2 and calls[1].arguments:
            value = opened(calls[1].arguments)
            assert GIVEN["city"].startswith(value.get("city") or "")  # type: ignore[attr-defined]
            assert value.get("days") in (None, 2)
    assert [json.loads(call.arguments) for call in read(form, [text])[1]] == [{}, GIVEN]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call> is what a model writes"),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a'),
        ("qwen3_coder", "<tool_call> is what a model writes"),
        ("mistral", "[TOOL_CALLS] is what a model writes"),
        ("llama3_json", '{"name": "Ada", "born": 18'),
        ("llama3_json", "{"),
        ("deepseek_v3", f"{D[0]} is what"),
    ],
)
def test_what_could_be_no_call_is_text_as_it_was(name: str, text: str) -> None:
    assert read(FORMATS[name], [text]) == (text, [])
    assert read(FORMATS[name], list(text)) == (text, [])


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "mistral", "llama3_json", "deepseek_v3"])
def test_a_marker_alone_is_dropped_where_it_was_cut_and_only_there(name: str) -> None:
    mark = FORMATS[name].start[0]
    assert read(FORMATS[name], [mark]) == ("", [])
    assert read(FORMATS[name], [mark], cut=False) == (mark, [])


CUT = '<tool_call>\n{"name": "weather", "arguments": {"city": "Par'
FUNCTION = {"name": "weather", "parameters": TOOLS["weather"]}


@pytest.mark.parametrize("stream", [False, True])
def test_over_http_in_each_api(stream: bool) -> None:
    engine = FakeEngine(max_model_len=4096)
    engine.reply = CUT + "is"  # one character a token
    limit = len(CUT)
    say = [{"role": "user", "content": "Hi"}]
    app = create_app(engine)
    body: dict[str, Any] = {"messages": say, "max_tokens": limit, "stream": stream}
    reply = post(app, "/v1/chat/completions", {**body, "tools": [{"type": "function", "function": FUNCTION}]})
    found = reply.events() if stream else [reply.json()]
    member = "delta" if stream else "message"
    choices = [each["choices"][0] for each in found]
    calls = [call for choice in choices for call in choice[member].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [{"name": "weather", "arguments": '{"city": "Par'}]
    assert choices[-1]["finish_reason"] == "length"
    assert not any(choice[member].get("content") for choice in choices)
    tool = {"name": "weather", "input_schema": TOOLS["weather"]}
    text = post(app, "/v1/messages", {**body, "tools": [tool]}).body.decode()
    assert ('{\\"city\\": \\"Par' in text) == stream  # whole, the input would have to be an object
    assert '"tool_use"' in text
    assert '"stop_reason":"max_tokens"' in text
    asked = {"input": "Hi", "max_output_tokens": limit, "stream": stream}
    text = post(app, "/v1/responses", {**asked, "tools": [{"type": "function", **FUNCTION}]}).body.decode()
    assert '"arguments":"{\\"city\\": \\"Par"' in text
    assert '"status":"incomplete"' in text
