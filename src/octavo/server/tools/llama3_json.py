"""Llama 3: the whole answer is {"name": ..., "parameters": {...}}, several joined by semicolons."""

from __future__ import annotations

import re
from typing import Any

from octavo.server.tools.base import DECODER, ToolCall, ToolFormat, Tools, all_or_none, call_of
from octavo.server.tools.begun import begun_objects

TAG = "<|python_tag|>"
_JOINT = re.compile(r"\s*+;?+\s*+")


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    text = block.removeprefix(TAG).strip()
    calls: list[ToolCall | None] = []
    at = 0
    while at < len(text):
        try:
            value: Any
            value, at = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        calls.append(call_of(value, "parameters", "arguments"))
        joint = _JOINT.match(text, at)
        at = joint.end() if joint else at
    return all_or_none(calls)


def begun(block: str, tools: Tools) -> list[ToolCall] | None:
    return begun_objects(block.removeprefix(TAG), tools, "", ";")


FORMAT = ToolFormat(
    "llama3_json", (TAG, "{"), None, parse, (TAG, '"parameters": '), begun, only_first=True, anywhere=(TAG,),
    keep_start=True, special=True, rank=3,
)  # fmt: skip
