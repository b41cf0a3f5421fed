"""Python's literals as JSON, token by token, for a value whose end max_tokens has cut off."""

from __future__ import annotations

import ast
import re

from octavo.server.tools.base import dumps

STRING = r""""(?:[^"\\]|\\.)*+"?+|'(?:[^'\\]|\\.)*+'?+"""
"""A string, its end too if it is there. No part gives back what it has taken."""
_TOKEN = re.compile(
    rf"\s*+(?:(?P<string>{STRING})|(?P<mark>[][{{}},:])"
    r"|(?P<number>-?+\d++(?:\.\d*+)?+(?:[eE][+-]?+\d*+)?+(?![\w.]))|(?P<word>[^\W\d]\w*+))",
    re.DOTALL,
)
_WORDS = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_CLOSES = {"]": "[", "}": "{"}
_JOINTS = {",": ", ", ":": ": "}
MAX_ESCAPE = 10
r"""Characters of the longest escape, \U0001f600, of which the last ones may be missing."""


def written(text: str) -> str:
    """What JSON would have written of the literal that begins here; it stops before what JSON has not."""
    said: list[str] = []
    opened: list[str] = []
    last = ""  # the mark before, or "key", or "value"
    at = 0
    while (found := _TOKEN.match(text, at)) is not None and found.end() > at:
        at, mark = found.end(), found["mark"]
        if mark in _CLOSES:
            if not opened or opened.pop() != _CLOSES[mark] or last in ("key", ":"):
                break
            said.append(mark)
            last = "value"
        elif mark in _JOINTS:  # written when it is known what follows: Python has commas at an end
            if last != ("key" if mark == ":" else "value") or not opened:
                break
            last = mark
        else:
            key = opened[-1:] == ["{"] and last != ":"
            value = mark or _scalar(found)
            if value is None or last in ("key", "value") or (key and found["string"] is None):
                break
            said.append(_JOINTS.get(last, "") + value)
            opened += [mark] * bool(mark)
            last = mark or ("key" if key else "value")
    return "".join(said)


def _scalar(found: re.Match[str]) -> str | None:
    if found["string"] is not None:
        return _string(found["string"])
    return found["number"] if found["number"] is not None else _WORDS.get(found["word"])


def _string(text: str) -> str | None:
    """JSON of a string; without a quote at its end if it has none itself."""
    for size in range(len(text), max(0, len(text) - MAX_ESCAPE), -1):
        for end in ("", text[0]):
            try:
                value = dumps(ast.literal_eval(text[:size] + end))
            except (SyntaxError, ValueError):
                continue
            return value[:-1] if end else value
    return None
