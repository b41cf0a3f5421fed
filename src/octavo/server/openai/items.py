"""One completion as a sequence of items (reasoning, text, calls), for APIs that answer in those."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from octavo.params import RequestOutput
from octavo.server.generation import Generation
from octavo.server.openai.reading import AnswerDelta, Readers
from octavo.server.tools import ToolCall


@dataclass(slots=True)
class Item:
    """kind: "reasoning", "text" or "call". text grows while the item is open; a call comes whole."""

    kind: str
    text: str = ""
    call_id: str = ""
    call: ToolCall | None = None


@dataclass(slots=True)
class Items:
    """Puts parts in order. add() gives (item, is it new, the piece) for each step."""

    items: list[Item] = field(default_factory=list)

    def add(self, part: AnswerDelta) -> list[tuple[Item, bool, str]]:
        steps: list[tuple[Item, bool, str]] = []
        for kind, piece in (("reasoning", part.reasoning), ("text", part.content)):
            if piece:
                new = not self.items or self.items[-1].kind != kind
                if new:
                    self.items.append(Item(kind))
                self.items[-1].text += piece
                steps.append((self.items[-1], new, piece))
        for call_id, call in part.calls:
            self.items.append(Item("call", call_id=call_id, call=call))
            steps.append((self.items[-1], True, call.arguments))
        return steps


@dataclass(slots=True)
class Totals:
    """What a completion took, and how it ended."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    reason: str | None = None
    stop: int | str | None = None


async def parts(
    generation: Generation, readers: Readers, totals: Totals
) -> AsyncGenerator[tuple[RequestOutput, AnswerDelta], None]:
    """What each step brings of the one completion; totals are kept up to date."""
    reader = readers.new()
    async with aclosing(generation.outputs()) as stream:
        async for _, output in stream:
            new = output.outputs[0]
            totals.prompt, totals.cached = len(output.prompt_token_ids), output.num_cached_tokens
            totals.generated += len(new.token_ids)
            part = reader.feed(new.text, new.finish_reason)
            if new.finish_reason is not None:
                totals.reason = readers.finish_reason(new.finish_reason, reader)
                totals.stop = new.stop_reason
            yield output, part
