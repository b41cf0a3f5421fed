"""Reasoning: what stands between marks such as <think> and </think> at the beginning of an answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a family of models writes its reasoning. Names are those of vLLM's --reasoning-parser.

    Attributes:
        open: an answer begins inside, whether or not the prompt has ended with the start mark.
        special: the marks are control tokens, so these must be part of the text.
    """

    name: str
    start: str = "<think>"
    end: str = "</think>"
    open: bool = False
    special: bool = False

    def splitter(self, prompt_end: str, marks: Sequence[str] = ()) -> ReasoningSplitter:
        """For one answer to a prompt with this end. marks: of tool calls."""
        begun = self.open or prompt_end.rstrip().endswith(self.start)
        return ReasoningSplitter(begun, self.start, self.end, marks)


QWEN3 = Reasoning("qwen3")
FORMATS: dict[str, Reasoning] = {
    each.name: each
    for each in (
        QWEN3,
        Reasoning("deepseek_r1", open=True),
        Reasoning("mistral", "[THINK]", "[/THINK]", special=True),
    )
}
NONE = "none"


@functools.lru_cache(maxsize=16)  # one model is served, whose template does not change
def reasoning_for(template: str | None, name: str | None = None) -> Reasoning | None:
    """By name, else by what the chat template writes; None: answers have no such part.

    Raises:
        InvalidRequestError: there is no format of this name.
    """
    if name is not None:
        if name not in (NONE, *FORMATS):
            raise InvalidRequestError(
                f"no reasoning format {name!r}; there are: {', '.join((*FORMATS, NONE))}", "reasoning_parser"
            )
        return FORMATS.get(name)
    for each in (QWEN3, FORMATS["mistral"]):
        if each.end in (template or ""):
            return each
    return None


class ReasoningSplitter:
    """Splits a stream into (reasoning, answer); pieces joined are the same wherever it was cut.

    Models call tools before they have ended their reasoning, too: what follows one of the marks is held back
    until reasoning ends, and is `unclosed` if it never does.

    Args:
        open: the prompt has ended with the start mark, so the answer begins inside. (Where a model
            repeats the mark, it is dropped.)
        marks: that begin tool calls.
    """

    def __init__(
        self, open: bool, start: str = QWEN3.start, end: str = QWEN3.end, marks: Sequence[str] = ()
    ) -> None:
        self._start, self._end, self._marks = start, end, marks
        self._held: list[str] = []  # from a mark on, which _tail ends
        self._tail = ""
        self.unclosed = ""
        self._open = open
        self._state = "before"
        self._white: list[str] = []  # white space that may be dropped: looked at once, with what follows it
        self._buffer = ""
        self._fresh = True  # white space at the beginning of a part is dropped

    def feed(self, text: str) -> tuple[str, str]:
        """(more reasoning, more of the answer)."""
        if self._held:
            return self._hold(text)
        if text.isspace() and not self._buffer and self._state != "after":
            self._white.append(text)
            return "", ""
        self._join(text)
        reasoning = ""
        if self._state == "before":
            begun = self._buffer.lstrip()
            if self._start.startswith(begun):
                return "", ""
            if begun.startswith(self._start):
                self._state, self._buffer = "inside", begun[len(self._start) :]
            elif self._open:
                self._state = "inside"
            else:
                self._state, self._fresh = "after", False
        if self._state == "inside":
            reasoning = self._inside()
        if self._buffer.isspace() and self._state != "after":
            self._white, self._buffer = [self._buffer], ""
        return reasoning, self._take(len(self._buffer)) if self._state == "after" else ""

    def _hold(self, text: str) -> tuple[str, str]:
        """Go on behind a mark; where reasoning ends, what was held is a part of it."""
        seen = self._tail + text
        self._held.append(text)
        self._tail = seen[1 - len(self._end) :]
        if self._end not in seen:
            return "", ""
        whole = "".join(self._held)
        self._held = []
        return self.feed(whole)

    def finish(self) -> tuple[str, str]:
        """The text has ended: what was held back."""
        self.unclosed, self._held = "".join(self._held), []
        self.unclosed = self.unclosed.lstrip() if self._fresh else self.unclosed
        self._join("")
        if self._state == "inside" or (self._state == "before" and self._open):
            text, self._buffer = self._buffer.rstrip(), ""
            return text.lstrip() if self._fresh else text, ""
        text, self._buffer = self._buffer, ""
        return "", text

    def _join(self, text: str) -> None:
        self._buffer = "".join((*self._white, self._buffer, text))
        self._white.clear()

    def _inside(self) -> str:
        at = self._buffer.find(self._end)
        if at < 0:
            begun = min((m for mark in self._marks if (m := self._buffer.find(mark)) >= 0), default=-1)
            settled = begun if begun >= 0 else len(self._buffer) - self._undecided()
            said = self._take(len(self._buffer[:settled].rstrip()))  # white space may be the last
            if begun >= 0:
                self._held, self._tail = [self._buffer], self._buffer[1 - len(self._end) :]
                self._buffer = ""
            return said
        text = self._take(len(self._buffer[:at].rstrip()))
        self._buffer = self._buffer[self._buffer.find(self._end) + len(self._end) :]
        self._state, self._fresh = "after", True
        return text

    def _undecided(self) -> int:
        """How many characters at the end may begin a mark."""
        marks = (self._end, *self._marks)
        sizes = (n for mark in marks for n in range(1, len(mark)) if self._buffer.endswith(mark[:n]))
        return max(sizes, default=0)

    def _take(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        return text
