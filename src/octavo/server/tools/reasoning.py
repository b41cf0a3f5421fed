"""Reasoning: what stands between <think> and </think> at the beginning of an answer."""

from __future__ import annotations

START, END = "<think>", "</think>"


class ReasoningSplitter:
    """Splits a stream into (reasoning, answer); pieces joined are the same wherever it was cut.

    Args:
        open: the prompt has ended with <think>, so the answer begins inside.
    """

    def __init__(self, open: bool) -> None:
        self._state = "inside" if open else "before"
        self._buffer = ""
        self._fresh = True  # white space at the beginning of a part is dropped

    def feed(self, text: str) -> tuple[str, str]:
        """(more reasoning, more of the answer)."""
        self._buffer += text
        reasoning = ""
        if self._state == "before":
            begun = self._buffer.lstrip()
            if START.startswith(begun):
                return "", ""
            if begun.startswith(START):
                self._state, self._buffer = "inside", begun[len(START) :]
            else:
                self._state, self._fresh = "after", False
        if self._state == "inside":
            reasoning = self._inside()
        return reasoning, self._take(len(self._buffer)) if self._state == "after" else ""

    def finish(self) -> tuple[str, str]:
        """The text has ended: what was held back."""
        if self._state == "inside":
            text, self._buffer = self._buffer.rstrip(), ""
            return text, ""
        text, self._buffer = self._buffer, ""
        return "", text

    def _inside(self) -> str:
        at = self._buffer.find(END)
        if at < 0:
            held = next((n for n in range(len(END) - 1, 0, -1) if self._buffer.endswith(END[:n])), 0)
            body = self._buffer[: len(self._buffer) - held].rstrip()  # white space may be the last
            return self._take(len(body))
        text = self._take(len(self._buffer[:at].rstrip()))
        self._buffer = self._buffer[self._buffer.find(END) + len(END) :]
        self._state, self._fresh = "after", True
        return text

    def _take(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        return text
