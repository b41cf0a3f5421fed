"""Reasoning: what stands between marks such as <think> and </think> at the beginning of an answer."""

from __future__ import annotations

import functools
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

    def splitter(self, prompt_end: str) -> ReasoningSplitter:
        """For one answer to a prompt with this end."""
        return ReasoningSplitter(self.open or prompt_end.rstrip().endswith(self.start), self.start, self.end)


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

    Args:
        open: the prompt has ended with the start mark, so the answer begins inside. (Where a model
            repeats the mark, it is dropped.)
    """

    def __init__(self, open: bool, start: str = QWEN3.start, end: str = QWEN3.end) -> None:
        self._start, self._end = start, end
        self._open = open
        self._state = "before"
        self._white: list[str] = []  # white space that may be dropped: looked at once, with what follows it
        self._buffer = ""
        self._fresh = True  # white space at the beginning of a part is dropped

    def feed(self, text: str) -> tuple[str, str]:
        """(more reasoning, more of the answer)."""
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

    def finish(self) -> tuple[str, str]:
        """The text has ended: what was held back."""
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
            held = next(
                (n for n in range(len(self._end) - 1, 0, -1) if self._buffer.endswith(self._end[:n])), 0
            )
            body = self._buffer[: len(self._buffer) - held].rstrip()  # white space may be the last
            return self._take(len(body))
        text = self._take(len(self._buffer[:at].rstrip()))
        self._buffer = self._buffer[self._buffer.find(self._end) + len(self._end) :]
        self._state, self._fresh = "after", True
        return text

    def _take(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        return text
