"""Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>.

Values stand bare, and may hold the markup itself. So a value ends

1. at </parameter> before the next <parameter=, before </function>, or before the end;
2. where that is missing: at a line that opens another parameter of the function, or at the function's end.

The outer <tool_call> may be missing, and there may be several functions in one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, dumps, loads, tool_call

_BEGIN, _END, _FUNCTION_END = "<parameter=", "</parameter>", "</function>"
_FUNCTION = re.compile(r"\s*+<function=([^>\n]++)>")
_PARAMETER = re.compile(r"\s*+<parameter=([^>\n]++)>\n?")
_CLOSED = re.compile(r"\s*+</function>")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*+(?:<parameter=|</function>|\Z))")
_OPENED = re.compile(r"\n(?=<parameter=([^>\n]++)>)")
_LAST = re.compile(r"\n?(?=</function>\s*+(?:<function=|\Z))")


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    """What is not consumed means that it is no call."""
    marks = _Marks(block)
    calls: list[ToolCall] = []
    at = 0
    while (begun := _FUNCTION.match(block, at)) is not None:
        name = begun[1].strip()
        known = tools.get(name, {}).get("properties", {})
        arguments, at = _arguments(block, begun.end(), marks, known)
        closed = _CLOSED.match(block, at)
        call = tool_call(name, arguments)
        if closed is None or call is None:
            return None
        calls.append(call)
        at = closed.end()
    return calls if calls and not block[at:].strip() else None


def _arguments(block: str, at: int, marks: _Marks, known: Any) -> tuple[dict[str, Any], int]:
    """(the whole parameters from here on, where they end): before the first one that is not whole."""
    arguments: dict[str, Any] = {}
    others = set(known)
    while (opened := _PARAMETER.match(block, at)) is not None:
        key = opened[1].strip()
        others.discard(key)
        end, behind = marks.value(opened.end(), others)
        text = block[opened.end() : end]
        unclosed = not block[end:behind].endswith(_END)
        if end < 0 or key in arguments or (unclosed and _END in text):  # it may end at either place
            break
        arguments[key] = _value(text, known.get(key))
        at = behind
    return arguments, at


def begun(block: str, tools: Tools) -> list[ToolCall] | None:
    """What max_tokens has left; of a tag that it has cut, nothing."""
    block = _whole_tags(block)
    marks = _Marks(block)
    calls: list[ToolCall] = []
    at = 0
    while (found := _FUNCTION.match(block, at)) is not None:
        name = found[1].strip()
        known = tools.get(name, {}).get("properties", {})
        arguments, at = _arguments(block, found.end(), marks, known)
        closed = _CLOSED.match(block, at)
        if closed is None:
            return _begun(block[at:], name, arguments, known, calls)
        calls.append(ToolCall(name, dumps(arguments)))
        at = closed.end()
    return None if block[at:].strip() else calls


def _begun(
    rest: str, name: str, arguments: dict[str, Any], known: Any, calls: list[ToolCall]
) -> list[ToolCall] | None:
    """calls and one more, whose next parameter, if there is one, is not whole."""
    written = dumps(arguments)[:-1]
    opened = _PARAMETER.match(rest)
    if opened is None and rest.strip():
        return None
    if opened is not None:
        key, text = opened[1].strip(), rest[opened.end() :]
        if key in arguments:
            return None
        value = text if _kinds(known.get(key)) - {"string"} else dumps(text.removesuffix("\n"))[:-1]
        written += f"{', ' * bool(arguments)}{dumps(key)}: {value}"
    return [*calls, ToolCall(name, written, cut=True)]


def _whole_tags(block: str) -> str:
    at = block.rfind("<")
    tag = block[at:]
    cut = any(mark.startswith(tag) for mark in (_BEGIN, _END, "<function=", _FUNCTION_END, "</tool_call>"))
    named = tag.startswith((_BEGIN, "<function=")) and not {">", "\n"} & set(tag)
    whole = tag in (_END, _FUNCTION_END)
    return block[:at] if at >= 0 and (cut or named) and not whole else block


class _Marks:
    """Where values may end; the block is read once for each kind of end, whatever the number of values."""

    def __init__(self, block: str) -> None:
        self._ends = [(each.start(), each.end()) for each in _VALUE_END.finditer(block)]
        self._lasts = [(each.start(), each.end()) for each in _LAST.finditer(block)]
        self._opened = [(each.start(), each.end(), each[1].strip()) for each in _OPENED.finditer(block)]

    def value(self, begin: int, others: set[str]) -> tuple[int, int]:
        """(where the value that begins here ends, where to go on); negative: nowhere.

        Args:
            others: parameters of the function that have no value yet.
        """
        found = [one for ends in (self._ends, self._lasts) if (one := _first(ends, begin)) is not None]
        best = min(found, default=(-1, -1))
        # The first opening before that place which another parameter's can be.
        for start, end, key in self._openings(begin, best[0]):
            if key in others:
                return start, end
        return best

    def _openings(self, begin: int, end: int) -> Iterator[tuple[int, int, str]]:
        at = bisect_left(self._opened, (begin - 1,))
        while at < len(self._opened) and (self._opened[at][0] < end or end < 0):
            yield self._opened[at]
            at += 1


def _first(places: list[tuple[int, int]], begin: int) -> tuple[int, int] | None:
    at = bisect_left(places, (begin - 1,))
    return (max(places[at][0], begin), places[at][1]) if at < len(places) else None


_WORDS = {"True": True, "False": False, "None": None}


def _value(text: str, schema: Any) -> Any:
    """Strings stand bare; anything else is JSON, if it is, or one of Python's words where the type has it."""
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return text
    value, word = loads(text), text.strip()
    if value is not None or word == "null":
        return value
    meant = (word in ("True", "False") and "boolean" in kinds) or (
        word == "None" and bool(kinds - {"string"})
    )
    return _WORDS[word] if meant else text


def _kinds(schema: Any) -> set[str]:
    """The types that a schema names, in its alternatives too; empty: it names none."""
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    found = {each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str)}
    for word in ("anyOf", "oneOf"):
        branches = schema.get(word)
        for branch in branches if isinstance(branches, list) else ():
            found |= _kinds(branch)
    return found


def in_value(before: bool, text: str) -> bool:
    """Whether a parameter's value is open behind this text, which an end follows."""
    if text.rstrip().endswith(_FUNCTION_END):
        return False
    begun, ended = text.rfind(_BEGIN), -1
    for each in _VALUE_END.finditer(text):
        ended = each.start()
    return before if begun < 0 and ended < 0 else begun > ended


FORMAT = ToolFormat(
    "qwen3_coder", ("<tool_call>", "<function="), "</tool_call>", parse, ("<function=",), begun,
    ends={"<function=": _FUNCTION_END}, after="</tool_call>", quotes=in_value,
)  # fmt: skip
