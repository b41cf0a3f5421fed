"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.params import CompletionOutput, RequestOutput, SamplingParams
from octavo.server.engine import ServedEngine
from octavo.server.errors import to_api_error
from octavo.server.generation import Generation
from octavo.server.limits import Rules
from octavo.server.openai.common import (
    body_schema,
    dumps,
    make_generation,
    new_id,
    now,
    off_loop,
    read,
    usage,
)
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.protocol import ChatRequest
from octavo.server.openai.stream import more_members, respond
from octavo.server.openai.structured import structured
from octavo.server.openai.tool_use import AnswerReader, ToolUse, tool_use
from octavo.server.state import state_of
from octavo.server.tools import Format, format_for
from octavo.server.tools.reasoning import Reasoning, reasoning_for

router = APIRouter()
rules = {"/v1/chat/completions": Rules(batched=True)}

RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "max_tokens", "self",
     "template", "tokenizer"}
)  # fmt: skip
"""What chat_template_kwargs must not set: names that rendering uses itself."""


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """One answer, or n, to a conversation; streamed or whole. `seed` is the one that was used."""
    body, size = await read(request, ChatRequest)
    names = _names(body)
    try:
        return await _respond(request, body, size, names)
    except InvalidRequestError as error:
        raise to_api_error(error, names) from None


async def _respond(request: Request, body: ChatRequest, size: int, names: dict[str, str]) -> Response:
    request_id = new_id("chatcmpl")
    generation, readers = await prepare(request, body, size, request_id)
    return respond(
        generation,
        body,
        "chat.completion.chunk",
        lambda: _DeltaFields(generation.engine, body, readers),
        lambda: _answer(generation, body, readers),
        names,
    )


async def prepare(
    request: Request, body: ChatRequest, size: int, request_id: str
) -> tuple[Generation, Readers]:
    """Check a conversation and its tools, and bind them to the engine.

    Raises:
        InvalidRequestError, ApiError: something in it cannot be served.
    """
    state = state_of(request)
    engine = state.served(body.model)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    form = format_for(engine.template, state.settings.tool_call_parser)
    params = use.constrain(body.sampling_params(), form)
    reasoning = reasoning_for(engine.template, state.settings.reasoning_parser)
    if reasoning is not None and reasoning.special:
        params = params.replace(skip_special_tokens=False)
    prompt = await render(engine, body, size, use)
    generation = make_generation(request, state, body, request_id, [prompt], params, "messages")
    return generation, Readers(engine, use, form, reasoning, params, prompt)


@dataclass(frozen=True, slots=True)
class Readers:
    """Makes a reader for each answer to one request."""

    engine: ServedEngine
    use: ToolUse
    form: Format
    reasoning: Reasoning | None
    params: SamplingParams
    prompt: list[int]

    def new(self) -> AnswerReader:
        splitter = None
        wanted = self.params.structured_outputs
        if self.reasoning is not None and (wanted is None or wanted.kind == "structural_tag"):
            end = self.engine.tokenizer.decode(self.prompt[-8:], skip_special_tokens=False)
            splitter = self.reasoning.splitter(end)
        return AnswerReader(splitter, self.use.parser(self.form))

    def finish_reason(self, reason: str | None, reader: AnswerReader) -> str | None:
        """OpenAI's: tool_calls where the model chose to call."""
        calls = reader.num_calls > 0 and not self.use.named
        return "tool_calls" if reason == "stop" and calls else reason


async def render(engine: ServedEngine, body: ChatRequest, size: int, use: ToolUse | None = None) -> list[int]:
    """The conversation as token ids.

    Args:
        size: characters of it, about.
        use: the tools that may be called.

    Raises:
        InvalidRequestError: bad messages, or the template refuses them.
    """
    taken = sorted(RESERVED.intersection(body.chat_template_kwargs))
    if taken:
        raise InvalidRequestError(f"chat_template_kwargs must not hold {taken[0]!r}", "chat_template_kwargs")
    add = body.add_generation_prompt
    if add is None:
        add = not body.continue_final_message
    elif add and body.continue_final_message:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
        )
    call = functools.partial(
        engine.render_chat,
        body.messages,
        tools=list(use.given) if use is not None and use.given else None,
        add_generation_prompt=add,
        continue_final_message=body.continue_final_message,
        **body.chat_template_kwargs,
    )
    return await off_loop(size, call)


def _names(body: ChatRequest) -> dict[str, str]:
    """What the engine calls otherwise than this request did."""
    form, wanted = structured(body)
    shape = "tools" if wanted is None and body.tools else form
    names = {"prompt": "messages", "logprobs": "top_logprobs", "structured_outputs": shape, "beam_width": "n"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


async def _answer(generation: Generation, body: ChatRequest, readers: Readers) -> bytes:
    output = (await generation.final())[0]
    answer: dict[str, Any] = {
        "id": generation.request_id,
        "object": "chat.completion",
        "created": now(),
        "model": generation.engine.served_model_name,
        "seed": output.seed,
        "choices": [_choice(readers, body, completion) for completion in output.outputs],
        "usage": usage([output]),
    }
    if body.return_token_ids:
        answer["prompt_token_ids"] = output.prompt_token_ids
    if body.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(output)
    return dumps(answer).encode()


def _choice(readers: Readers, body: ChatRequest, completion: CompletionOutput) -> dict[str, Any]:
    reader = readers.new()
    part = reader.feed(completion.text, last=True)
    empty = None if part.calls or readers.use.forced else ""
    message: dict[str, Any] = {"role": "assistant", "content": empty, "refusal": None}
    message |= part.members(0)
    for call in message.get("tool_calls") or ():
        del call["index"]  # deltas number their calls, messages do not
    choice: dict[str, Any] = {
        "index": completion.index,
        "message": message,
        "logprobs": _logprobs(readers.engine, body, completion),
        "finish_reason": readers.finish_reason(completion.finish_reason, reader),
        "stop_reason": completion.stop_reason,
    }
    if body.return_token_ids:
        choice["token_ids"] = completion.token_ids
    return choice


def _logprobs(engine: ServedEngine, body: ChatRequest, completion: CompletionOutput) -> dict[str, Any] | None:
    if completion.logprobs is None:
        return None
    return chat_logprobs(engine.tokenizer, completion.token_ids, completion.logprobs, body.top_logprobs or 0)


class _DeltaFields:
    """The members of a chat chunk's choice."""

    def __init__(self, engine: ServedEngine, body: ChatRequest, readers: Readers) -> None:
        self._engine, self._body, self._make = engine, body, readers
        self._readers: dict[int, AnswerReader] = {}

    def __call__(self, _prompt: int, output: RequestOutput, new: CompletionOutput, first: bool) -> str | None:
        body = self._body
        reader = self._readers.get(new.index)
        if reader is None:
            reader = self._readers[new.index] = self._make.new()
        before = reader.num_calls
        part = reader.feed(new.text, last=new.finish_reason is not None)
        wanted = body.logprobs or body.return_token_ids or body.continuous_usage
        if part.empty and not (first or new.finish_reason or (wanted and new.token_ids)):
            return None
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if not part.reasoning and not part.calls:
            delta["content"] = ""
        delta |= part.members(before)
        logprobs = dumps(_logprobs(self._engine, body, new)) if body.logprobs else "null"
        more = more_members(output.prompt_token_ids, new, first, body.return_token_ids)
        reason = self._make.finish_reason(new.finish_reason, reader)
        return f'"delta":{dumps(delta)},"logprobs":{logprobs},"finish_reason":{dumps(reason)}{more}'
