# ruff: noqa: RUF001 (the markers are written with these very characters)
"""Tool calls and reasoning in every format: read right, and the same wherever the stream is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.server.tools import FORMATS, ToolCall, ToolFormat, ToolParser, forced, format_for
from octavo.server.tools.reasoning import FORMATS as REASONINGS
from octavo.server.tools.reasoning import reasoning_for

TOOLS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {"type": "object"},
}
ALL = FORMATS | {"forced": forced.FORCED}
D = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
TWO = [ToolCall("weather", '{"city": "Köln", "days": 2}'), ToolCall("now", "{}")]
J1, J2 = '{"city": "Köln", "days": 2}', "{}"

# format -> texts of the calls TWO.
WRITTEN: dict[str, list[str]] = {
    "hermes": [
        f'<tool_call>\n{{"name": "weather", "arguments": {J1}}}\n</tool_call>\n'
        f'<tool_call>{{"name": "now", "arguments": {J2}}}</tool_call>'
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ],
    "llama3_json": [
        f'{{"name": "weather", "parameters": {J1}}}; {{"name": "now", "parameters": {J2}}}',
        f'<|python_tag|>{{"name": "weather", "parameters": {J1}}};{{"name": "now", "parameters": {J2}}}',
    ],
    "mistral": [
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {J1}}}, {{"name": "now", "arguments": {J2}}}]',
        f"[TOOL_CALLS]weather[ARGS]{J1}[TOOL_CALLS]now[ARGS]{J2}",
        f"[TOOL_CALLS]weather{J1}now{J2}",
    ],
    "pythonic": ["[weather(city='Köln', days=2), now()]"],
    "deepseek_v3": [
        f"{D[0]}{D[1]}function{D[2]}weather\n```json\n{J1}\n```{D[3]}\n"
        f"{D[1]}function{D[2]}now\n```json\n{{}}\n```{D[3]}{D[4]}",
        f"{D[0]}{D[1]}weather{D[2]}{J1}{D[3]}{D[1]}now{D[2]}{{}}{D[3]}{D[4]}",
    ],
    "forced": [f'[{{"name": "weather", "arguments": {J1}}}, {{"name": "now", "arguments": {J2}}}]'],
}
CASES = [(name, text) for name, texts in WRITTEN.items() for text in texts]


def read(form: ToolFormat, pieces: list[str], most: int | None = None) -> tuple[str, list[ToolCall]]:
    parser = ToolParser(form, TOOLS, most)
    parts = [parser.feed(piece) for piece in pieces] + [parser.finish()]
    return "".join(part.text for part in parts), [call for part in parts for call in part.calls]


def test_every_format_has_examples() -> None:
    assert set(WRITTEN) == set(ALL)


@pytest.mark.parametrize(("name", "text"), CASES)
def test_calls_are_read(name: str, text: str) -> None:
    assert read(ALL[name], [text]) == ("", TWO)
    assert read(ALL[name], [text], most=1) == ("", TWO[:1])


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, t in CASES if not ALL[n].only_first])
def test_text_around_calls_is_kept_and_white_space_is_not(name: str, text: str) -> None:
    ends = ALL[name].end is not None
    after = "\n\nDone." if ends else ""
    said, calls = read(ALL[name], [f"I look it up.\n\n{text}{after}"])
    assert calls == TWO
    assert said == "I look it up." + ("Done." if ends else "")


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, t in CASES if not ALL[n].nothing_else])
def test_what_is_no_call_is_text_as_it_was(name: str, text: str) -> None:
    form = ALL[name]
    broken = text.replace("weather", "unknown")
    said, calls = read(form, [broken])
    assert "unknown" in said
    assert ToolCall("weather", J1) not in calls
    cut = text[: len(text) // 3]
    assert read(form, [cut]) == (cut, [])
    assert read(form, ["1 < 2, {a} [b] and <tool"]) == ("1 < 2, {a} [b] and <tool", [])


@pytest.mark.parametrize("size", range(1, len(WRITTEN["forced"][0]) + 1))
def test_of_forced_calls_that_were_cut_off_the_beginning_is_left(size: int) -> None:
    """A call comes as soon as its name is whole, and no piece of the grammar's JSON is text."""
    text = WRITTEN["forced"][0]
    first, second = text.index('}, {"name"'), len(text) - 2  # so far the arguments of each reach
    said, calls = read(forced.FORCED, [text[:size]])
    whole = [call for call in calls if not call.cut]
    assert (said, whole) == ("", TWO[: (size >= first) + (size >= second)])
    named = [name for name in ("weather", "now") if f'"name": "{name}"' in text[:size]]
    assert [call.name for call in calls] == named
    assert all(text[:size].endswith(call.arguments) for call in calls[len(whole) :])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[", []),
        ("[{", [ToolCall("now", "", cut=True)]),  # it can only be this one
        ('[{"name": "no', [ToolCall("now", "", cut=True)]),
        ('[{"name": "now", "argu', [ToolCall("now", "", cut=True)]),
        ('[{ "name" : "now" , "arguments" :\n{"a": "\\"}', [ToolCall("now", '{"a": "\\"}', cut=True)]),
        ('[{"name": "now", "arguments": {"a": 1e', [ToolCall("now", '{"a": 1e', cut=True)]),
        ('[{"name": "now", "arguments": {"a": 1}', [ToolCall("now", '{"a": 1}')]),
        ('[{"name": "now", "arguments": {"a": 1e999}}]', []),  # not cut, and no number that JSON can say
    ],
)
def test_the_one_forced_call_cut_off(text: str, calls: list[ToolCall]) -> None:
    parser = ToolParser(forced.FORCED, {"now": {}})
    parser.feed(text)
    parsed = parser.finish()
    assert (parsed.text, parsed.calls) == ("", calls)


THINKS = {mark for each in REASONINGS.values() for mark in (each.start, each.end)}
MARKS = sorted(({m for f in ALL.values() for m in (*f.start, f.end or "")} | THINKS) - {""})
PIECES = st.sampled_from([*MARKS, *(text for _, text in CASES), " ", "\n", "a", "{", "[", "<", "]", "x y"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)


def cut_up(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


@settings(max_examples=300)
@given(st.sampled_from(sorted(ALL)), TEXTS, st.lists(st.integers(0, 1000), max_size=12))
def test_every_split_gives_the_same(name: str, text: str, cuts: list[int]) -> None:
    assert read(ALL[name], cut_up(text, cuts)) == read(ALL[name], [text])
    assert read(ALL[name], list(text)) == read(ALL[name], [text])


def split(pieces: list[str], inside: bool, name: str = "qwen3") -> tuple[str, str]:
    form = REASONINGS[name]
    splitter = form.splitter(f"a prompt {form.start}\n" if inside else "a prompt")
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, ("Hm.", "Yes.")),
        ("Hm.</think>Yes.", True, ("Hm.", "Yes.")),
        ("Hm. and no end", True, ("Hm. and no end", "")),
        (" Yes. <think>no</think>", False, ("", " Yes. <think>no</think>")),
        ("<thin", False, ("", "<thin")),
        ("a < b </thin", True, ("a < b </thin", "")),
    ],
)
def test_reasoning_is_separated(text: str, inside: bool, expected: tuple[str, str]) -> None:
    assert split([text], inside) == expected


@settings(max_examples=300)
@given(TEXTS, st.booleans(), st.sampled_from(sorted(REASONINGS)), st.lists(st.integers(0, 1000), max_size=12))
def test_reasoning_is_the_same_at_every_split(text: str, inside: bool, name: str, cuts: list[int]) -> None:
    assert split(cut_up(text, cuts), inside, name) == split([text], inside, name)
    assert split(list(text), inside, name) == split([text], inside, name)


@pytest.mark.parametrize(
    ("template", "name", "found"),
    [
        ("x </think> y", None, "qwen3"),
        ("[THINK] [/THINK]", None, "mistral"),
        ("nothing", None, None),
        (None, "deepseek_r1", "deepseek_r1"),
        ("x </think> y", "none", None),
    ],
)
def test_reasoning_is_told_by_name_or_template(
    template: str | None, name: str | None, found: str | None
) -> None:
    form = reasoning_for(template, name)
    assert (form and form.name) == found


def test_deepseek_begins_inside_whatever_the_prompt() -> None:
    assert split(["Hm.</thi", "nk>Yes."], False, "deepseek_r1") == ("Hm.", "Yes.")
    assert split(["<think>Hm.</think>Yes."], False, "deepseek_r1") == ("Hm.", "Yes.")
    assert split(["[THINK]Hm.[/TH", "INK]Yes."], False, "mistral") == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "hermes"),
        ("... <tool_call> ...", "hermes"),
        ("... <tool_call> <function=x> ...", "qwen3_coder"),
        ("[TOOL_CALLS]", "mistral"),
        ('{"name": "f", "parameters": {}}', "llama3_json"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ],
)
def test_the_format_is_told_by_the_template(template: str | None, name: str) -> None:
    assert format_for(template).name == name
    assert format_for(template, "pythonic").name == "pythonic"


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="there are: deepseek_v3"):
        format_for(None, "xml")
    with pytest.raises(InvalidRequestError, match="there are: qwen3"):
        reasoning_for(None, "xml")


def test_hermes_arguments_may_be_text_of_json() -> None:
    text = json.dumps({"name": "now", "arguments": '{"a": 1}'})
    assert read(ALL["hermes"], [f"<tool_call>{text}</tool_call>"]) == ("", [ToolCall("now", '{"a": 1}')])


@pytest.mark.parametrize("deep", ["[" * 5000, '{"a":' * 5000, "[f(a=" + "(" * 3000])
def test_deep_nesting_is_text(deep: str) -> None:
    for form in ALL.values():
        wrapped: Any = form.start[0] + deep + (form.end or "")
        assert read(form, [wrapped])[1] == []
