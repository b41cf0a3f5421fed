"""The split tests can fail: each mutant of what holds text back is caught by them, and so is over-holding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.tools import ToolParser, hermes
from octavo.server.tools.reasoning import ReasoningSplitter
from octavo.tokenizer.stop import StopAutomaton, StopStrings

TEXT = 'Well. <tool_call>\n{"name": "now", "arguments": {}}\n</tool_call> <tool'
THOUGHT = "<think>Hm.</think>\nYes."


def tool_splits_agree() -> bool:
    """Whether TEXT means the same whole and in any two pieces."""

    def read(pieces: list[str]) -> tuple[str, int]:
        parser = ToolParser(hermes.FORMAT, {"now": {}})
        parts = [parser.feed(piece) for piece in pieces] + [parser.finish()]
        return "".join(part.text for part in parts), parser.count

    return all(read([TEXT[:i], TEXT[i:]]) == ("Well.<tool", 1) for i in range(len(TEXT)))


QUOTED = '<tool_call>{"name": "now", "arguments": {"a": "</tool_call> \\" "}}</tool_call>'


def quoted_splits_agree() -> bool:
    """Whether the end that stands in a string ends nothing, wherever the text is cut."""

    def read(pieces: list[str]) -> tuple[str, int]:
        parser = ToolParser(hermes.FORMAT, {"now": {}})
        parts = [parser.feed(piece) for piece in pieces] + [parser.finish()]
        return "".join(part.text for part in parts), parser.count

    return all(read([QUOTED[:i], QUOTED[i:]]) == ("", 1) for i in range(len(QUOTED)))


def thought_splits_agree() -> bool:
    def read(pieces: list[str]) -> tuple[str, str]:
        splitter = ReasoningSplitter(False)
        parts = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
        return "".join(p[0] for p in parts), "".join(p[1] for p in parts)

    cut = all(read([THOUGHT[:i], THOUGHT[i:]]) == ("Hm.", "Yes.") for i in range(len(THOUGHT)))
    return cut and read(["<thi", "n"]) == ("", "<thin")


def stops_agree() -> bool:
    """Whether aab is found in aaab whole and cut, and nothing is held for nothing."""

    def read(pieces: list[str]) -> tuple[str, str | None]:
        matcher = StopStrings(["aab"])
        fed = [matcher.feed(piece) for piece in pieces]
        return "".join(safe for safe, _ in fed), fed[-1][1]

    found = all(read(["aaab"[:i], "aaab"[i:]]) == ("a", "aab") for i in range(4))
    return found and StopStrings(["aab"]).feed("aaac") == ("aaac", None)


CHECKS = [tool_splits_agree, quoted_splits_agree, thought_splits_agree, stops_agree]


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_hold(check: Callable[[], bool]) -> None:
    assert check()


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "check"),
    [
        (ToolParser, "_undecided", lambda self: 0, tool_splits_agree),
        (ToolParser, "_may_begin", lambda self, at, mark: False, tool_splits_agree),
        (ToolParser, "_in_value", lambda self, text: False, quoted_splits_agree),
        (ToolParser, "_in_value", lambda self, text: True, tool_splits_agree),
        (ReasoningSplitter, "_inside", lambda self: self._take(len(self._buffer)), thought_splits_agree),
        (ReasoningSplitter, "finish", lambda self: ("", ""), thought_splits_agree),
        (StopAutomaton, "_link", lambda self: None, stops_agree),
        (
            StopAutomaton,
            "step",
            lambda self, at, code: self._edges.get(at << 21 | code, 0),
            stops_agree,
        ),
    ],
)
def test_mutants_are_caught(
    owner: type,
    name: str,
    mutant: Callable[..., object],
    check: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    assert not check()


@given(st.text(st.sampled_from("<tol_cal> x\n"), max_size=30))
def test_text_is_held_only_while_it_may_begin_a_call(text: str) -> None:
    """What is held back is white space, and the beginning of a marker after it."""
    parser = ToolParser(hermes.FORMAT, {"now": {}})
    out = "".join(parser.feed(char).text for char in text)
    held = text[len(out) :]
    assert text.startswith(out)
    if "<tool_call>" not in text:
        mark = held.lstrip()
        assert "<tool_call>".startswith(mark) or not mark
