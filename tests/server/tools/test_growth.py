# ruff: noqa: RUF001 (the markers are written with these very characters)
"""Whatever a model writes, reading it takes time that grows as the text does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.tools import FORMATS, ToolCall, ToolFormat, ToolParser, forced
from octavo.server.tools.deepseek_v3 import BEGIN, END
from octavo.server.tools.reasoning import QWEN3
from support.growth import LINEAR, growth

ALL = FORMATS | {"forced": forced.FORCED}
TOOLS = {"f": {"type": "object"}}

HOSTILE: dict[str, tuple[str, Callable[[int], str]]] = {
    "calls that begin and never end": (
        "deepseek_v3",
        lambda n: BEGIN + "<｜tool▁call▁begin｜>" * n + "<｜tool▁sep｜>" * n + END,
    ),
    "calls that are whole": (
        "deepseek_v3",
        lambda n: BEGIN + "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>" * n + END,
    ),
    "spaces before no fence": (
        "deepseek_v3",
        lambda n: BEGIN + f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{' ' * n}x<｜tool▁call▁end｜>" + END,
    ),
    "spaces behind a name": ("mistral", lambda n: f"[TOOL_CALLS]f{' ' * n}x"),
    "a long name": ("mistral", lambda n: f"[TOOL_CALLS]{'f' * n} x"),
    "names and objects in a row": ("mistral", lambda n: "[TOOL_CALLS]" + "f{}" * n),
    "parameters without an end": (
        "qwen3_coder",
        lambda n: f"<tool_call><function=f>{'<parameter=x>' * n}</function></tool_call>",
    ),
    "parameters without a key": (
        "qwen3_coder",
        lambda n: f"<tool_call><function=f>{'<parameter=' * n}</function></tool_call>",
    ),
    "keys on lines of their own": (
        "qwen3_coder",
        lambda n: (
            f"<tool_call><function=f>{('<parameter=' * 50 + chr(10)) * (n // 50)}</function></tool_call>"
        ),
    ),
    "functions that end often": (
        "qwen3_coder",
        lambda n: f"<tool_call><function=f>{'</function> ' * n}x</tool_call>",
    ),
    "ends within a string": (
        "hermes",
        lambda n: '<tool_call>{"name": "f", "arguments": {"a": "' + "</tool_call>" * n + '"}}</tool_call>',
    ),
    "ends within a string that never ends": ("hermes", lambda n: '<tool_call>{"' + "</tool_call>" * n),
    "sections' ends within a string": ("deepseek_v3", lambda n: BEGIN + '{"' + END * n),
    "marks within a string": ("mistral", lambda n: '[TOOL_CALLS]f{"a": "' + "[TOOL_CALLS][ARGS]" * n + '"}'),
    "ends within a value": (
        "qwen3_coder",
        lambda n: "<tool_call><function=f><parameter=a>" + "</tool_call> " * n + "</parameter></function>",
    ),
    "whole calls before a cut one": (
        "llama3_json",
        lambda n: '{"name": "f", "parameters": {}};' * n + '{"name": "f", "para',
    ),
    "whole arguments before cut ones": (
        "mistral",
        lambda n: "[TOOL_CALLS]f{}" + "[TOOL_CALLS]f{}" * n + "f{",
    ),
    "spaces behind a cut name": ("mistral", lambda n: "[TOOL_CALLS]" + f"f{' ' * 50}{{}}" * (n // 20) + "f{"),
    "functions that are bare": ("qwen3_coder", lambda n: "<function=f></function>" * (n // 4)),
    "functions' ends within a value": (
        "qwen3_coder",
        lambda n: "<function=f><parameter=a>" + "</function>x" * n + "</parameter></function>",
    ),
    "parameters of many names": (
        "qwen3_coder",
        lambda n: (
            "<tool_call><function=f>"
            + "".join(f"<parameter={i}>\n1\n</parameter>\n" for i in range(n // 10))
            + "</function></tool_call>"
        ),
    ),
    "lines that open no parameter": (
        "qwen3_coder",
        lambda n: "<tool_call><function=f>" + "<parameter=a>\n" * (n // 4) + "</function></tool_call>",
    ),
    "empty blocks": ("hermes", lambda n: "<tool_call></tool_call>" * n),
    "blocks that never end": ("hermes", lambda n: "<tool_call>" * n),
    "objects in a row": ("llama3_json", lambda n: '{"name": "f"};' * n),
    "objects in a forced list": ("forced", lambda n: '[{"name": "f"}' + ', {"name": "f"}' * n),
    "calls before a cut one": ("pythonic", lambda n: "[" + "f(), " * (n // 10) + "f(a='"),
    "arguments before a cut one": ("pythonic", lambda n: "[f(" + "a={'b': 1}, " * (n // 10) + "a=["),
    "a cut value": ("pythonic", lambda n: "[f(a=[" + "{'a': '\\x41'}, " * (n // 10)),
    "a cut string": ("pythonic", lambda n: "[f(a='" + "\\x41" * n + "\\x"),
    "brackets that stay open": ("pythonic", lambda n: "[f(a=" + "[" * n),
    "calls in a list": ("pythonic", lambda n: "[" + "f(), " * (n // 10) + "f()]"),
}


def read(form: ToolFormat, pieces: Iterable[str], cut: bool = False) -> tuple[str, list[ToolCall]]:
    parser = ToolParser(form, TOOLS)
    parts = [parser.feed(piece) for piece in pieces] + [parser.finish(cut)]
    return "".join(part.text for part in parts), [call for part in parts for call in part.calls]


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("cut", [False, True])
def test_reading_a_whole_answer_is_linear(case: str, cut: bool) -> None:
    name, write = HOSTILE[case]
    assert growth(lambda n: read(ALL[name], [write(n)], cut), 10_000) <= LINEAR


BY_CHARACTER = {
    "white space": ("hermes", lambda n: " " * n),
    "white space before a marker": ("hermes", lambda n: " " * n + "<tool_call>{}</tool_call>"),
    "an open block": ("hermes", lambda n: "<tool_call>" + "x" * n),
    "a block without an end marker": ("mistral", lambda n: "[TOOL_CALLS]" + "x" * n),
    "text": ("deepseek_v3", lambda n: "x" * n),
}


@pytest.mark.parametrize("case", BY_CHARACTER)
def test_reading_a_stream_by_characters_is_linear(case: str) -> None:
    name, write = BY_CHARACTER[case]
    assert growth(lambda n: read(ALL[name], write(n)), 20_000) <= LINEAR


@pytest.mark.parametrize("before", ["", "<think>", "<think>x"])
def test_white_space_in_reasoning_is_linear(before: str) -> None:
    def split(count: int) -> None:
        splitter = QWEN3.splitter("")
        for piece in (before, *" " * count, "</think>"):
            splitter.feed(piece)

    assert growth(split, 20_000) <= LINEAR


NO_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"]
WRITTEN = {
    "hermes": '<tool_call>{{"name": "f", "arguments": {{"a": {}}}}}</tool_call>',
    "llama3_json": '{{"name": "f", "parameters": {{"a": {}}}}}',
    "mistral": '[TOOL_CALLS]f{{"a": {}}}',
    "pythonic": "[f(a={})]",
    "qwen3_coder": "<tool_call><function=f><parameter=a>{}</parameter></function></tool_call>",
    "deepseek_v3": BEGIN + '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{{"a": {}}}<｜tool▁call▁end｜>' + END,
    "forced": '[{{"name": "f", "arguments": {{"a": {}}}}}]',
}


def strictly(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize("name", WRITTEN)
def test_arguments_never_hold_what_json_cannot_say(name: str, number: str) -> None:
    _, calls = read(ALL[name], [WRITTEN[name].format(number)])
    values = [strictly(call.arguments)["a"] for call in calls]
    assert values == ([number] if name == "qwen3_coder" else [])


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_that_json_can_say_are_read(name: str) -> None:
    _, calls = read(ALL[name], [WRITTEN[name].format("-1.5e3")])
    assert [strictly(call.arguments) for call in calls] == [{"a": -1500.0}]


def test_every_format_is_asked() -> None:
    assert set(WRITTEN) == set(ALL)


@given(st.text(" <>{}[]\n=fx", max_size=60), st.sampled_from(sorted(ALL)))
def test_odd_calls_are_json_or_text(inside: str, name: str) -> None:
    form = ALL[name]
    text, calls = read(form, [form.start[0] + inside + (form.end or "")])
    for call in calls:
        assert call.cut or strictly(call.arguments) is not None
    assert calls or form.nothing_else or text


def test_arguments_as_deep_as_can_be_read_are_text_or_a_call() -> None:
    for depth in range(150, 1000, 50):
        deep = "[" * depth + "]" * depth
        text = f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>'
        said, calls = read(ALL["hermes"], [text])
        assert (said == text) is not bool(calls)
