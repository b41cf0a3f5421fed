# ruff: noqa: RUF001 (the markers are written with these very characters)
"""Calls of models that have not ended their reasoning; and stream = whole of all that a reader reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.app import create_app
from octavo.server.openai.reading import AnswerReader
from octavo.server.tools import FORMATS, ToolParser
from octavo.server.tools.reasoning import FORMATS as REASONINGS
from octavo.server.tools.reasoning import QWEN3
from support.asgi import post
from support.fake_engine import FakeEngine
from support.growth import LINEAR, growth

TOOLS = {"now": {"type": "object"}, "weather": {"type": "object", "properties": {"city": {"type": "string"}}}}
D = [f"<｜tool▁{word}｜>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")]
J = '{"city": "Köln </think"}'
# Of each format a call, and it behind what only a mark at the beginning would begin.
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {J}}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nKöln </think\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama3_json": f'<|python_tag|>{{"name": "weather", "parameters": {J}}}',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{J}",
    "pythonic": "<|python_start|>[weather(city='Köln </think')]<|python_end|>",
    "deepseek_v3": f"{D[0]}{D[1]}weather{D[2]}{J}{D[3]}{D[4]}",
}
ANY = st.sampled_from(["length", "stop"])


def read(
    name: str, pieces: Sequence[str], reason: str = "stop", reasoning: str = "qwen3", inside: bool = True
) -> tuple[str, str, list[tuple[str, str]]]:
    """(reasoning, content, calls) of an answer that came in these pieces."""
    form, how = FORMATS[name], REASONINGS[reasoning]
    splitter = how.splitter(how.start if inside else "", form.marks)
    reader = AnswerReader(splitter, ToolParser(form, TOOLS))
    last = len(pieces) - 1
    parts = [reader.feed(piece, reason if i == last else None) for i, piece in enumerate(pieces)]
    calls = [(call.name, call.arguments) for part in parts for _, call in part.calls]
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts), calls


@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_reasoning_that_never_ends_is_one(name: str) -> None:
    found = read(name, [f"I look.\n\n{CALLS[name]}\n"])
    assert (found[0], found[1]) == ("I look.", "")
    assert [(call, json.loads(given)) for call, given in found[2]] == [("weather", json.loads(J))]


@pytest.mark.parametrize("name", CALLS)
def test_where_reasoning_ends_the_call_was_a_part_of_it(name: str) -> None:
    text = f"I could say\n{CALLS[name]}\nor not."
    assert read(name, list(f"{text}\n</think>\n\nNo.")) == (text, "No.", [])


@pytest.mark.parametrize("name", CALLS)
def test_a_cut_call_in_reasoning_comes_as_far_as_it_was_written(name: str) -> None:
    said, content, calls = read(name, [f"I look. {CALLS[name].split('öln')[0]}"], "length")
    assert (said, content) == ("I look.", "")
    assert calls == [("weather", '{"city": "K')]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a <tool_call> is what I write ", "a <tool_call> is what I write"),
        (" <tool_call>{}</tool_call> ", "<tool_call>{}</tool_call>"),
        ('a <tool_call>{"name": "other", "arguments": {}}</tool_call>',) * 2,
        ("a <tool_c", "a <tool_c"),
    ],
)
def test_what_is_no_call_is_reasoning_as_it_was(text: str, said: str) -> None:
    assert read("hermes", [text]) == (said, "", [])
    assert read("hermes", list(text)) == (said, "", [])


MARKS = sorted({mark for form in FORMATS.values() for mark in (*form.start, form.end or "")} - {""})
THINKS = [mark for each in REASONINGS.values() for mark in (each.start, each.end)]
PIECES = st.sampled_from([*MARKS, *THINKS, *CALLS.values(), " ", "\n", "a", "{", "[", "now()", "'", '"'])


@settings(max_examples=600)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(PIECES, min_size=1, max_size=6).map("".join),
    st.integers(0, 300),
    st.lists(st.integers(0, 300), max_size=8),
    ANY,
    st.sampled_from(sorted(REASONINGS)),
    st.booleans(),
)
def test_the_stream_is_the_whole_wherever_it_is_cut(
    name: str, text: str, end: int, cuts: list[int], reason: str, reasoning: str, inside: bool
) -> None:
    """Of every format, with and without reasoning, ended anywhere, by max_tokens or by the model."""
    text = text[: end or len(text)] or text
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole = read(name, [text], reason, reasoning, inside)
    assert read(name, pieces, reason, reasoning, inside) == whole
    assert read(name, list(text), reason, reasoning, inside) == whole


def test_holding_back_is_linear() -> None:
    def split(count: int) -> None:
        splitter = QWEN3.splitter("<think>", ("<tool_call>",))
        for piece in ("<tool_call>", *"<x " * count, "</think>"):
            splitter.feed(piece)

    assert growth(split, 10_000) <= LINEAR


@pytest.mark.parametrize("stream", [False, True])
def test_over_http(stream: bool) -> None:
    engine = FakeEngine(max_model_len=4096)
    engine.reply = f"<think>\nI look.\n{CALLS['hermes']}"
    engine.template = "{% for m in messages %}{{ m.content }}{% endfor %} <tool_call> </think>"
    tools = [{"type": "function", "function": {"name": name, "parameters": of}} for name, of in TOOLS.items()]
    say = [{"role": "user", "content": "Hi"}]
    body = {"messages": say, "tools": tools, "stream": stream, "max_tokens": len(engine.reply)}
    reply = post(create_app(engine), "/v1/chat/completions", body)
    member = "delta" if stream else "message"
    choices = [each["choices"][0] for each in (reply.events() if stream else [reply.json()])]
    assert "".join(one[member].get("reasoning_content") or "" for one in choices) == "I look."
    calls = [call["function"]["name"] for one in choices for call in one[member].get("tool_calls", ())]
    assert calls == ["weather"]
