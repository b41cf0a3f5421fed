"""benchmarks/tool_calls.py: it reads as the server does, cuts anywhere, and notices a stream that differs."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import tool_calls

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def fixture(raw: str, *tags: str) -> Any:
    return SimpleNamespace(
        id="qwen3-hermes/x", family="qwen3-hermes", models=["Qwen/Qwen3-0.6B"], tags=tags, raw_output=raw,
        generation_prompt=None, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
    )  # fmt: skip


class Judge:
    """Of canitoolcall's checks and results what the script asks for."""

    class Status(Enum):
        PASS = "pass"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def run_checks(self, fixture: Any, family: Any, observation: Any) -> list[Any]:
        self.seen.append(observation.nonstream)
        return [SimpleNamespace(status=self.Status.PASS, check="c", detail="d")]

    def worst_status(self, statuses: Any) -> Any:
        return max(statuses, key=str)

    ParseResult = ParsedToolCall = Observation = SimpleNamespace


def test_an_answer_is_read_whole_and_in_pieces() -> None:
    judge = Judge()
    assert tool_calls.judged(fixture(f"<think>why</think>\n\nSure.\n{CALL}"), "stop", judge, judge) == (
        "pass", [], 0)  # fmt: skip
    (seen,) = judge.seen
    assert (seen.reasoning_content, seen.content) == ("why", "Sure.")
    assert [(call.name, call.arguments_raw) for call in seen.tool_calls] == [("f", '{"a": 1}')]
    assert [len("".join(pieces)) for pieces in tool_calls.cuts("x" * 30)] == [30] * (1 + tool_calls.CUTS)


def test_calls_that_are_only_begun_are_counted_and_left_out() -> None:
    judge = Judge()
    assert tool_calls.judged(fixture(CALL[:-20], "truncated"), "length", judge, judge) == ("pass", [], 1)
    assert judge.seen[0].tool_calls == []


def test_a_stream_that_is_not_the_whole_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "cuts", lambda text: [[text[:-3]], [text]])
    status, wrong, _ = tool_calls.judged(fixture(CALL), "stop", Judge(), Judge())
    assert status == "fail"
    assert wrong == ["stream 0 is not the whole"]
