"""What the formats share: finding blocks of tool calls in a stream of text.

    text text <start> block <end> text
    '-------'          |
     passed on         parsed when complete: a list of calls, or nothing that it could be, then text

1. Text is passed on as soon as it cannot be part of a marker, or white space before a block.
2. White space around a block that holds calls belongs to nobody, and is dropped.
3. What is not a call in the end is text, as it was.
4. Of a call that max_tokens has cut comes what was written of it; of a marker, nothing.

So the pieces joined are the same wherever the stream was cut.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call; arguments are JSON text, or its beginning where max_tokens has cut it."""

    name: str
    arguments: str
    cut: bool = False


Tools = Mapping[str, Mapping[str, Any]]
"""JSON schema of the parameters by the function's name."""

PIECE = 4096
"""Characters that are looked at together: blocks that end in them are cut off their beginning one by one."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes its calls.

    Attributes:
        start: markers that begin a block. end: what ends it; None: the end of the text.
        parse: a block's inside to its calls; None: it is no call. Markers are not part of it unless
            keep_start.
        begun: the same of a block that max_tokens has cut: the last call as far as it was written; an empty
            list: its name is not whole yet. It need not have become a call.
        only_first: a block can only begin the text; but for markers that are `anywhere`.
        ends: by marker an end of its own; then both are part of what is parsed.
        after: what models write behind a block that has an end of its own; it belongs to nobody.
        quotes: (were we inside before, text) -> are we inside a value behind it: an end that stands there is
            a part of the value.
        special: the markers are control tokens, so these must be part of the text.
        nothing_else: the answer is calls alone (a grammar sees to it): what is no call is no text either.
        signs: found in the chat templates of such models.
        strict: (name) -> what stands before and after the arguments of a call, for grammars; the
            former begins with the start marker.
        rank: where a template has the signs of several formats, the lowest one's are theirs.
    """

    name: str
    start: tuple[str, ...]
    end: str | None
    parse: Callable[[str, Tools], list[ToolCall] | None]
    signs: tuple[str, ...]
    begun: Callable[[str, Tools], list[ToolCall] | None] | None = None
    only_first: bool = False
    anywhere: tuple[str, ...] = ()
    ends: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    quotes: Callable[[bool, str], bool] | None = None
    keep_start: bool = False
    special: bool = False
    nothing_else: bool = False
    strict: Callable[[str], tuple[str, str]] | None = None
    rank: int = 0

    @property
    def marks(self) -> tuple[str, ...]:
        """Markers that begin a block wherever they stand."""
        return self.anywhere if self.only_first else self.start


@dataclass(slots=True)
class Parsed:
    """What a piece of text brought: text to pass on, and complete calls."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class ToolParser:
    """Follows one completion. feed() its text piece by piece, then finish().

    What nothing is decided about is kept as pieces and looked at once, so the time grows as the text does.

    Args:
        tools: those that may be called; a call of another one is text.
        most: so many calls are reported, later ones dropped (parallel_tool_calls: false).
    """

    def __init__(self, format: ToolFormat, tools: Tools, most: int | None = None) -> None:
        self._format, self._tools, self._most = format, tools, most
        self._kept: list[str] = []  # looked at: the open block's text, or white space
        self._buffer = ""  # behind it, not decided yet: part of a marker, or new text
        self._inside = ""  # the marker that began the open block
        self._quoted = False  # at the end that was seen last, the block was inside a value
        self._from = 0  # what was kept before has been asked for that
        self._said: list[str] = []  # text to pass on
        self._wrote = False  # some text was passed on
        self._called = False  # the last thing was a call
        self._after = ""  # may follow it
        self.count = 0

    def feed(self, text: str) -> Parsed:
        """The next piece."""
        parsed = Parsed()
        for at in range(0, len(text), PIECE):
            self._buffer += text[at : at + PIECE]
            if not self._inside and self._buffer.isspace():
                self._keep(len(self._buffer))
                continue
            if not self._inside:
                self._join()
            while self._step(parsed):
                pass
        return self._ended(parsed)

    def finish(self, cut: bool = False) -> Parsed:
        """The text has ended; cut: max_tokens has ended it."""
        parsed = Parsed()
        self._join()
        if self._inside:
            # An end that stood in a value may have been the block's own: values are not always closed.
            whole = self._format.end is None or self._from > 0
            read = whole and self._block(self._buffer, parsed)
            if not read and not (cut and self._beginning(self._buffer, parsed)):
                self._text(self._inside_text())
        else:
            self._text("" if self._called and not self._buffer.strip() else self._buffer)
        self._buffer = self._inside = ""
        return self._ended(parsed)

    def _ended(self, parsed: Parsed) -> Parsed:
        parsed.text, self._said = "".join(self._said), []
        return parsed

    def _keep(self, size: int) -> None:
        """Look no more at so much of the buffer's beginning."""
        self._kept.append(self._buffer[:size])
        self._buffer = self._buffer[size:]

    def _join(self) -> None:
        self._kept.append(self._buffer)
        self._buffer = "".join(self._kept)
        self._kept.clear()

    def _step(self, parsed: Parsed) -> bool:
        """Decide about the beginning of the buffer. False: more text is needed."""
        form = self._format
        if self._inside:  # a block is open: look for its end
            end = form.ends.get(self._inside, form.end)
            at = -1 if end is None else self._buffer.find(end)
            if end is None or at < 0:
                self._keep(max(0, len(self._buffer) - len(end or " ") + 1))
                return False
            if self._in_value(self._buffer[:at]):
                self._keep(at + len(end))
                self._from = len(self._kept)
                return bool(self._buffer)
            rest, self._buffer = self._buffer[at + len(end) :], self._buffer[:at]
            self._join()
            whole = self._buffer + end if self._inside in form.ends else self._buffer
            if not self._block(whole, parsed):  # no call, so it was text with markers
                self._buffer += end
                self._text(self._inside_text())
            self._after = form.after if self._inside in form.ends and self._called else ""
            self._inside, self._buffer = "", rest
            return bool(rest)
        if self._after and (behind := self._buffer.lstrip()):
            if self._after.startswith(behind) and behind != self._after:
                return False
            if behind.startswith(self._after):
                self._buffer = behind[len(self._after) :]
            self._after = ""
            return bool(self._buffer)
        places = [(self._buffer.find(mark), -len(mark), mark) for mark in form.start]
        found = [(at, size, mark) for at, size, mark in places if at >= 0 and self._may_begin(at, mark)]
        if found:  # a marker: the block begins, what was before is text
            at, _, mark = min(found)
            before = self._buffer[:at]
            if before.strip():
                self._text(before.rstrip())
                before = before[len(before.rstrip()) :]
            self._space = before
            self._inside, self._buffer = mark, self._buffer[at + len(mark) :]
            self._quoted, self._from = False, 0
            return True
        keep = self._undecided()  # no whole marker: pass on all that cannot be the beginning of one
        passed = self._buffer[: len(self._buffer) - keep]
        self._buffer = self._buffer[len(passed) :]
        if passed:
            self._text(passed)
        return False

    _space = ""

    def _in_value(self, text: str) -> bool:
        """Whether the open block is inside a value behind this text, which goes on with what is kept."""
        if self._format.quotes is None:
            return False
        new = "".join((*self._kept[self._from :], text))  # since the end that was seen before
        self._quoted = self._format.quotes(self._quoted, new)
        return self._quoted

    def _may_begin(self, at: int, mark: str) -> bool:
        first = not self._wrote and not self._buffer[:at].strip()
        return first or not self._format.only_first or mark in self._format.anywhere

    def _undecided(self) -> int:
        """How many characters at the end may yet belong to a marker, or to white space before one."""
        buffer = self._buffer
        keep = 0
        form, said = self._format, buffer.strip()
        late = form.only_first and (self._wrote or bool(said and not self._starts(said)))
        for mark in form.anywhere if late else form.start:
            for size in range(min(len(mark) - 1, len(buffer)), 0, -1):
                if buffer.endswith(mark[:size]):
                    keep = max(keep, size)
                    break
        body = buffer[: len(buffer) - keep]
        return keep + len(body) - len(body.rstrip())

    def _starts(self, text: str) -> bool:
        return any(mark.startswith(text) or text.startswith(mark) for mark in self._format.start)

    def _inside_text(self) -> str:
        return self._space + self._inside + self._buffer

    def _block(self, block: str, parsed: Parsed) -> bool:
        """Report a block's calls. False: it is none."""
        calls = self._format.parse(self._inner(block), self._tools)
        return bool(calls) and self._report(calls or [], parsed)

    def _beginning(self, block: str, parsed: Parsed) -> bool:
        """Report what a cut block holds of calls. False: it is text."""
        begun = self._format.begun
        calls = begun(self._inner(block), self._tools) if begun is not None else None
        if calls is None or (not calls and len(self._inside) == 1):  # a bracket alone marks nothing
            return False
        return self._report(calls, parsed)

    def _inner(self, block: str) -> str:
        kept = self._format.keep_start or self._inside in self._format.ends
        return self._inside + block if kept else block

    def _report(self, calls: list[ToolCall], parsed: Parsed) -> bool:
        if any(call.name not in self._tools for call in calls):
            return False
        for call in calls:
            if self._most is None or self.count < self._most:
                parsed.calls.append(call)
                self.count += 1
        self._called = True
        return True

    def _text(self, text: str) -> None:
        if self._called and text:
            text = text.lstrip()
        if text:
            if not self._format.nothing_else:
                self._said.append(text)
            self._wrote, self._called = True, False


def new_call_id() -> str:
    """An id for a call; letters and digits only, nine of them, which every template takes."""
    return secrets.token_hex(5)[:9]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is larger than any number that a client could read")
    return value


DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
"""Reads no NaN and no Infinity, neither by name nor as 1e999: they could not be written as JSON again."""


_QUOTES = re.compile(r'\\.|"|\n', re.DOTALL)


def in_string(before: bool, text: str) -> bool:
    """Whether JSON is inside a string behind this text. A line's end ends every string: JSON's have none."""
    inside = before
    for found in _QUOTES.finditer(text):
        if found[0] == '"':
            inside = not inside
        elif found[0] == "\n":
            inside = False
    return inside


def loads(text: str) -> Any:
    """JSON, or None where it is none."""
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def tool_call(name: str, arguments: Any) -> ToolCall | None:
    """A call with these arguments, if they are an object that JSON can say."""
    try:
        return ToolCall(name, dumps(arguments)) if isinstance(arguments, dict) else None
    except (ValueError, RecursionError):  # nested as deep as could be read, and not written
        return None


def call_of(value: Any, *argument_names: str) -> ToolCall | None:
    """A call from an object with name and arguments (under one of these names)."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments: Any = next((value[name] for name in argument_names if name in value), {})
    return tool_call(value["name"], loads(arguments) if isinstance(arguments, str) else arguments)


def all_or_none(calls: Sequence[ToolCall | None]) -> list[ToolCall] | None:
    """The calls, if every one is one."""
    good = [call for call in calls if call is not None]
    return good if good and len(good) == len(calls) else None


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
