"""How the answers to a chat are read: reasoning, text, and tool calls, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.params import SamplingParams
from octavo.server.engine import ServedEngine
from octavo.server.openai.strictness import AsksForAShape, held
from octavo.server.openai.tool_use import ToolUse, tool_use
from octavo.server.state import ServerSettings
from octavo.server.tools import ToolCall, ToolFormat, ToolParser, format_for
from octavo.server.tools.base import new_call_id
from octavo.server.tools.reasoning import Reasoning, ReasoningSplitter, reasoning_for

PROMPT_END = 8
"""Tokens of a prompt that show whether its template has begun the model's reasoning."""


class ChatBody(AsksForAShape, Protocol):
    """What a chat request says of tools (chat.ChatRequest)."""

    tools: list[Any]
    tool_choice: Any
    parallel_tool_calls: bool

    def sampling_params(self) -> SamplingParams: ...


@dataclass(frozen=True, slots=True)
class Readers:
    """Makes a reader for each answer to one request.

    Attributes:
        use: the tools that may be called; form: how the model writes calls; reasoning: how it reasons.
        params: the request's, with what follows from these. prompt_end: the prompt's last tokens.
    """

    engine: ServedEngine
    use: ToolUse
    form: ToolFormat
    reasoning: Reasoning | None
    params: SamplingParams
    prompt_end: list[int] = field(default_factory=list)

    @staticmethod
    def of(engine: ServedEngine, settings: ServerSettings, body: ChatBody) -> Readers:
        """Of a request to this engine.

        Raises:
            InvalidRequestError: tools, or what is asked beside them, cannot be served.
        """
        asked = body.tools or body.tool_choice is not None
        use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls) if asked else ToolUse()
        form = format_for(engine.template, settings.tool_call_parser)
        params = body.sampling_params()
        if body.response_format is not None:
            params = held(body, settings, params)
        if use.tools:
            params = use.constrain(params, form)
        reasoning = reasoning_for(engine.template, settings.reasoning_parser)
        if reasoning is not None and reasoning.special:
            params = params.replace(skip_special_tokens=False)
        return Readers(engine, use, form, reasoning, params)

    def new(self) -> AnswerReader:
        splitter = None
        wanted = self.params.structured_outputs
        if self.reasoning is not None and (wanted is None or wanted.kind == "structural_tag"):
            end = self.engine.tokenizer.decode(self.prompt_end, skip_special_tokens=False)
            splitter = self.reasoning.splitter(end, self.form.marks if self.use.tools else ())
        parser = self.use.parser(self.form) if self.use.tools else None
        return AnswerReader(splitter, parser)

    def finish_reason(self, reason: str | None, reader: AnswerReader) -> str | None:
        """OpenAI's: tool_calls where the model chose to call, and no stop text has ended it amid a call."""
        calls = reader.num_calls > 0 and not self.use.named and not reader.is_cut
        return "tool_calls" if reason == "stop" and calls else reason


@dataclass(slots=True)
class AnswerDelta:
    """What a piece of an answer brought."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, ToolCall]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.reasoning or self.content or self.calls)

    def members(self, first_call: int) -> dict[str, Any]:
        """Members of a message, or with calls numbered from first_call, of a delta."""
        said = {"reasoning_content": self.reasoning, "content": self.content}
        found: dict[str, Any] = {name: text for name, text in said.items() if text}
        if self.calls:
            found["tool_calls"] = [
                {"index": index, "id": i, "type": "function",
                 "function": {"name": call.name, "arguments": call.arguments}}
                for index, (i, call) in enumerate(self.calls, first_call)
            ]  # fmt: skip
        return found


class AnswerReader:
    """Reads one completion's text: feed() its pieces, the last one with finish_reason."""

    def __init__(self, splitter: ReasoningSplitter | None, parser: ToolParser | None) -> None:
        self._splitter, self._parser = splitter, parser
        self.num_calls, self.is_cut = 0, False  # cut: the last call ends before its arguments do

    def feed(self, text: str, reason: str | None) -> AnswerDelta:
        part, last, unclosed = AnswerDelta(content=text), reason is not None, ""
        if self._splitter is not None:
            part.reasoning, part.content = self._splitter.feed(text)
            if last:
                reasoning, content = self._splitter.finish()
                part.reasoning, part.content = part.reasoning + reasoning, part.content + content
                unclosed = self._splitter.unclosed
        if self._parser is not None:
            found = self._parser.feed(part.content or unclosed)
            part.content, calls = found.text, found.calls
            if last:
                end = self._parser.finish(cut=reason == "length")
                part.content, calls = part.content + end.text, calls + end.calls
            part.calls = [(f"call_{new_call_id()}", call) for call in calls]
            self.num_calls += len(calls)
            self.is_cut = self.is_cut or any(call.cut for call in calls)
            if unclosed:  # what is no call there is reasoning
                part.reasoning, part.content = part.reasoning + part.content.rstrip(), ""
        return part
