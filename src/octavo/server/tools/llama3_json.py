"""Llama 3: the whole answer is {"name": ..., "parameters": {...}}, several joined by semicolons."""

from __future__ import annotations

import json
from typing import Any

from octavo.server.tools.base import ToolCall, ToolFormat, Tools, all_or_none, call_of

TAG = "<|python_tag|>"


def parse(block: str, tools: Tools) -> list[ToolCall] | None:
    rest = block.removeprefix(TAG).strip()
    calls: list[ToolCall | None] = []
    decoder = json.JSONDecoder()
    while rest:
        try:
            value: Any
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        calls.append(call_of(value, "parameters", "arguments"))
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return all_or_none(calls)


FORMAT = ToolFormat(
    "llama3_json", (TAG, "{"), None, parse, (TAG, '"parameters": '), only_first=True, keep_start=True,
    special=True, rank=3,
)  # fmt: skip
