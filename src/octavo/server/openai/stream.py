"""From engine outputs to OpenAI's chunks. The parts of a chunk that never change are formatted once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from octavo.params import CompletionOutput, RequestOutput
from octavo.server.errors import OPENAI
from octavo.server.generation import Generation
from octavo.server.openai.common import dumps, now, usage_of
from octavo.server.openai.protocol import GenerationRequest
from octavo.server.sse import Answer, EventStream

ChoiceFields = Callable[[int, RequestOutput, CompletionOutput, bool], str | None]
"""(prompt index, output, what is new, is it the choice's first) -> the JSON members of the choice
after its index; None where nothing is worth a chunk."""


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """The constant beginning of every chunk."""

    request_id: str
    object: str
    created: int
    model: str

    def format(self, seed: int | None) -> str:
        """Up to the list of choices."""
        head = {"id": self.request_id, "object": self.object, "created": self.created, "model": self.model}
        if seed is not None:
            head["seed"] = seed
        return f'data: {dumps(head)[:-1]},"choices":['


@dataclass(slots=True)
class _PromptState:
    """Of one prompt's stream: its chunk head, token counts, and which choices began and ended."""

    head: str
    prompt_tokens: int
    cached: int
    generated: int = 0
    begun: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)


async def chunks(
    generation: Generation,
    head: ChunkHead,
    choice_fields: ChoiceFields,
    include_usage: bool,
    continuous_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Chunks as server-sent events: one event a choice with news, those of one step in one piece.

    With usage, all chunks carry a `usage` member (null, or continuous: so far), and a last chunk
    without choices has the total.
    """
    prompts: dict[int, _PromptState] = {}
    async with aclosing(generation.outputs()) as stream:
        async for prompt_index, output in stream:
            state = prompts.get(prompt_index)
            if state is None:
                state = prompts[prompt_index] = _PromptState(
                    head.format(output.seed), output.num_prompt_tokens, output.num_cached_tokens
                )
            events: list[str] = []
            for new in output.outputs:
                index = new.index
                if index in state.ended:
                    continue
                state.generated += len(new.token_ids)
                fields = choice_fields(prompt_index, output, new, index not in state.begun)
                if fields is None:
                    continue
                state.begun.add(index)
                if new.finish_reason is not None:
                    state.ended.add(index)
                tail = _tail(prompts, include_usage, continuous_usage)
                number = prompt_index * generation.params.n + index
                events.append(f'{state.head}{{"index":{number},{fields}}}]{tail}}}\n\n')
            if events:
                yield "".join(events).encode()
    if include_usage:
        yield f'{head.format(None)}],"usage":{dumps(_usage(prompts))}}}\n\n'.encode()


def more_members(prompt: Sequence[int], new: CompletionOutput, first: bool, token_ids: bool) -> str:
    """What vLLM adds to a chunk's choice: stop_reason at the end, and token ids where asked for."""
    more = ""
    if new.finish_reason is not None:
        more += f',"stop_reason":{dumps(new.stop_reason)}'
    if token_ids:
        more += f',"token_ids":{dumps(new.token_ids)}'
        if first:
            more += f',"prompt_token_ids":{dumps(prompt)}'
    return more


def respond(
    generation: Generation,
    body: GenerationRequest,
    kind: str,
    choice_fields: Callable[[], ChoiceFields],
    answer: Callable[[], Coroutine[Any, Any, bytes]],
    names: Mapping[str, str],
) -> Response:
    """The response that the request wants: a stream of chunks, or the whole answer.

    Args:
        kind: a chunk's `object`.
        choice_fields, answer: make the one or the other.
        names: this request's for the engine's fields, where they differ.
    """
    headers = {"x-request-id": generation.request_id}
    if not body.stream:
        return Answer(answer, headers, OPENAI, names)
    head = ChunkHead(generation.request_id, kind, now(), generation.engine.served_model_name)
    events = chunks(generation, head, choice_fields(), body.include_usage, body.continuous_usage)
    return EventStream(events, headers, OPENAI, names)


def _tail(prompts: dict[int, _PromptState], include_usage: bool, continuous: bool) -> str:
    if continuous:
        return f',"usage":{dumps(_usage(prompts))}'
    return ',"usage":null' if include_usage else ""


def _usage(prompts: dict[int, _PromptState]) -> dict[str, Any]:
    states = prompts.values()
    return usage_of(
        sum(state.prompt_tokens for state in states),
        sum(state.generated for state in states),
        sum(state.cached for state in states),
    )
