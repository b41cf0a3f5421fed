# ruff: noqa: RUF001 (the markers are written with these very characters)
"""Calls whose arguments hold the markup, and calls as models miswrite them: read right, or text as it was."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.server.tools import FORMATS, ToolCall, ToolFormat, ToolParser, forced

ALL = FORMATS | {"forced": forced.FORCED}
TEXT = {"type": "string"}
TOOLS: dict[str, Any] = {
    "write_file": {"type": "object", "properties": {"path": TEXT, "content": TEXT}},
    "set": {
        "type": "object",
        "properties": {
            "on": {"type": "boolean"},
            "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "n": {"type": "integer"},
            "any": {},
        },
    },
    "weather": {"type": "object", "properties": {"city": TEXT, "state": TEXT}},
}


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    parser = ToolParser(form, TOOLS)
    parts = [parser.feed(piece) for piece in pieces] + [parser.finish()]
    calls = [(call.name, json.loads(call.arguments)) for part in parts for call in part.calls]
    return "".join(part.text for part in parts), calls


def coded(name: str, **arguments: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{values}</function>"


QUOTING = "Close tags inline: </parameter> and </function> and <parameter=path> are text here."
CODER: list[tuple[str, str, list[tuple[str, Any]]]] = [
    (
        f"<tool_call>\n{coded('write_file', path='notes.md', content=QUOTING)}\n</tool_call>",
        "",
        [("write_file", {"path": "notes.md", "content": QUOTING})],
    ),
    (
        f"<tool_call>\n{coded('write_file', path='a', content='x </tool_call> y')}\n</tool_call>",
        "",
        [("write_file", {"path": "a", "content": "x </tool_call> y"})],
    ),
    (
        "<tool_call>\n<function=weather>\n<parameter=city>\nDallas\n</function>\n</tool_call>",
        "",
        [("weather", {"city": "Dallas"})],
    ),
    (
        "<tool_call>\n<function=weather>\n<parameter=city>\nDallas\n<parameter=state>\nTX\n</function>\n"
        "</tool_call>",
        "",
        [("weather", {"city": "Dallas", "state": "TX"})],
    ),
    (
        coded("weather", city="Dallas") + "\n" + coded("weather", city="Paris"),
        "",
        [("weather", {"city": "Dallas"}), ("weather", {"city": "Paris"})],
    ),
    (
        f"<tool_call>{coded('weather', city='A')}\n{coded('weather', city='B')}</tool_call>",
        "",
        [("weather", {"city": "A"}), ("weather", {"city": "B"})],
    ),
    (f"I look.\n{coded('weather', city='A')}\nDone.", "I look.Done.", [("weather", {"city": "A"})]),
    (coded("weather", city=""), "", [("weather", {"city": ""})]),
    # a block's end behind functions that no block's beginning stood before
    (f"{coded('weather', city='A')}\n</tool_call>", "", [("weather", {"city": "A"})]),
    (f"{coded('weather', city='A')}</tool_call>\nDone.", "Done.", [("weather", {"city": "A"})]),
    (
        f"{coded('weather', city='A')}\n{coded('weather', city='B')}\n</tool_call>",
        "",
        [("weather", {"city": "A"}), ("weather", {"city": "B"})],
    ),
    (f"{coded('weather', city='A')}</tool_box>", "</tool_box>", [("weather", {"city": "A"})]),
    (f"{coded('weather', city='A')}</tool_", "</tool_", [("weather", {"city": "A"})]),
    (
        coded("set", on="True", maybe="None", n="3", any="True"),
        "",
        [("set", {"on": True, "maybe": None, "n": 3, "any": "True"})],
    ),
    (coded("weather", city="True"), "", [("weather", {"city": "True"})]),
    # no calls: text as it was
    (coded("weather", city="A").replace("</function>", "x</function>"), None, []),  # type: ignore[list-item]
    (f"<tool_call>{coded('weather', city='A')} x</tool_call>", None, []),  # type: ignore[list-item]
    ("<function=weather><parameter=city>A</parameter><parameter=city>B</parameter></function>", None, []),  # type: ignore[list-item]
    (coded("unknown", city="A"), None, []),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("text", "said", "calls"), CODER)
def test_qwen3_coder(text: str, said: str | None, calls: list[tuple[str, Any]]) -> None:
    expected = (text if said is None else said, calls)
    assert read(ALL["qwen3_coder"], [text]) == expected
    assert read(ALL["qwen3_coder"], list(text)) == expected


@pytest.mark.parametrize(
    ("name", "text", "said", "calls"),
    [
        ("llama3_json", 'Sure.\n<|python_tag|>{"name": "set", "parameters": {"n": 1}}', "Sure.",
         [("set", {"n": 1})]),
        ("llama3_json", 'Sure: {"name": "set", "parameters": {"n": 1}}', None, []),
        ("pythonic", "<|python_start|>[set(n=1)]<|python_end|>", "", [("set", {"n": 1})]),
        ("pythonic", "Sure.\n<|python_start|>[set(n=1)]<|python_end|>", "Sure.", [("set", {"n": 1})]),
        ("pythonic", "Sure: [set(n=1)]", None, []),
        ("mistral", '[TOOL_CALLS]set[ARGS]{"any": "[TOOL_CALLS]set[ARGS]{}"}[TOOL_CALLS]set{}', "",
         [("set", {"any": "[TOOL_CALLS]set[ARGS]{}"}), ("set", {})]),
        ("hermes", '<tool_call>{"name": "set"</tool_call> Done.', None, []),
        ("hermes", '<tool_call>{"name": "set", "arguments": {"any": "\\"</tool_call>"}}</tool_call>', "",
         [("set", {"any": '"</tool_call>'})]),
        ("hermes",
         '<tool_call>{"a\n</tool_call> then <tool_call>{"name": "set", "arguments": {}}</tool_call>',
         '<tool_call>{"a\n</tool_call> then', [("set", {})]),
    ],
)  # fmt: skip
def test_as_models_write_them(name: str, text: str, said: str | None, calls: list[tuple[str, Any]]) -> None:
    expected = (text if said is None else said, calls)
    assert read(ALL[name], [text]) == expected
    assert read(ALL[name], list(text)) == expected


D = [f"<｜tool▁{word}｜>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")]


def rendered(name: str, call: ToolCall) -> str:
    """One call as the format writes it."""
    given = json.loads(call.arguments)
    match name:
        case "hermes":
            return f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        case "qwen3_coder":
            return f"<tool_call>\n{coded(call.name, **given)}\n</tool_call>"
        case "llama3_json":
            return f'{{"name": "{call.name}", "parameters": {call.arguments}}}'
        case "mistral":
            return f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}"
        case "pythonic":
            return f"[{call.name}({', '.join(f'{key}={value!r}' for key, value in given.items())})]"
        case "deepseek_v3":
            return f"{D[0]}{D[1]}function{D[2]}{call.name}\n```json\n{call.arguments}\n```{D[3]}{D[4]}"
    return f'[{{"name": "{call.name}", "arguments": {call.arguments}}}]'


MARKS = sorted({mark for form in ALL.values() for mark in (*form.start, form.end or "[")})
PIECES = [
    *MARKS,
    *D,
    "[ARGS]",
    '"',
    "'",
    "\\",
    "{",
    "}",
    "<",
    "```",
    "é",
    "\U0001f600",
    "a b",
    "&amp;",
    "\n",
    "1",
]
VALUES = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
# Bare values have no escapes: one that ends as a value ends cannot be told from it.
OWN_ENDS = ("</function>", "</tool_call>", "\n")


@settings(max_examples=400)
@given(st.sampled_from(sorted(ALL)), VALUES, VALUES, st.lists(st.integers(0, 1000), max_size=6))
def test_what_is_rendered_is_read(name: str, path: str, content: str, cuts: list[int]) -> None:
    if name == "qwen3_coder":
        for end in OWN_ENDS:
            path, content = path.replace(end, ""), content.replace(end, "")
    call = ToolCall("write_file", json.dumps({"path": path, "content": content}, ensure_ascii=False))
    text = rendered(name, call)
    expected = ("", [("write_file", {"path": path, "content": content})])
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    assert read(ALL[name], [text]) == expected
    assert read(ALL[name], [text[a:b] for a, b in pairwise(places)]) == expected
    assert read(ALL[name], list(text)) == expected


SCALARS = VALUES | st.none() | st.booleans() | st.integers(-9, 9)
NESTED = st.recursive(
    st.dictionaries(VALUES, SCALARS, max_size=2) | st.lists(SCALARS, max_size=2),
    lambda inner: (
        st.dictionaries(VALUES, inner | SCALARS, max_size=2) | st.lists(inner | SCALARS, max_size=3)
    ),
    max_leaves=8,
)


def without(value: Any, ends: tuple[str, ...]) -> Any:
    """The value, its strings and names without these."""
    if isinstance(value, dict):
        return {without(name, ends): without(part, ends) for name, part in value.items()}
    if isinstance(value, list):
        return [without(part, ends) for part in value]
    for end in ends if isinstance(value, str) else ():
        value = value.replace(end, "")
    return value


@settings(max_examples=400)
@given(st.sampled_from(sorted(ALL)), NESTED, st.lists(st.integers(0, 1000), max_size=6))
def test_markup_in_nested_values_is_read(name: str, value: Any, cuts: list[int]) -> None:
    if name == "qwen3_coder":
        value = without(value, OWN_ENDS[:2])  # JSON writes a line's end as an escape
    arguments = json.dumps({"any": value}, ensure_ascii=False)
    if name == "qwen3_coder":
        text = f"<tool_call>\n{coded('set', any=json.dumps(value, ensure_ascii=False))}\n</tool_call>"
    else:
        text = rendered(name, ToolCall("set", arguments))
    expected = ("", [("set", {"any": value})])
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    assert read(ALL[name], [text]) == expected
    assert read(ALL[name], [text[a:b] for a, b in pairwise(places)]) == expected
    assert read(ALL[name], list(text)) == expected
