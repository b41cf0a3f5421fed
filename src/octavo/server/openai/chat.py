"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.params import CompletionOutput, RequestOutput
from octavo.server.engine import ServedEngine
from octavo.server.generation import Generation
from octavo.server.openai.common import (
    body_schema,
    dumps,
    error_mapper,
    make_generation,
    new_id,
    now,
    off_loop,
    usage,
)
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.protocol import ChatRequest, parse
from octavo.server.openai.stream import ChunkHead, chunks
from octavo.server.sse import Answer, ErrorMapper, EventStream
from octavo.server.state import state_of

router = APIRouter()

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """One answer, or n, to a conversation; streamed or whole. `seed` is the one that was used."""
    data = await request.body()
    body = await off_loop(len(data), parse, ChatRequest, data)
    to_error = error_mapper(_names(body))
    try:
        return await _respond(request, body, len(data), to_error)
    except InvalidRequestError as error:
        raise to_error(error) from None


async def _respond(request: Request, body: ChatRequest, size: int, to_error: ErrorMapper) -> Response:
    state = state_of(request)
    engine = state.served(body.model)
    params = body.sampling_params()
    prompt = await render(engine, body, size)
    request_id = new_id("chatcmpl")
    generation = make_generation(request, state, body, request_id, [prompt], params, "messages")
    headers = {"x-request-id": request_id}
    if body.stream:
        head = ChunkHead(request_id, "chat.completion.chunk", now(), engine.served_model_name)
        fields = _DeltaFields(engine, body)
        events = chunks(generation, head, fields, body.include_usage, body.continuous_usage)
        return EventStream(events, to_error, headers)
    return Answer(lambda: _answer(generation, body), to_error, headers)


async def render(engine: ServedEngine, body: ChatRequest, size: int) -> list[int]:
    """The conversation as token ids.

    Args:
        size: characters of it, about.

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
        add_generation_prompt=add,
        continue_final_message=body.continue_final_message,
        **body.chat_template_kwargs,
    )
    return await off_loop(size, call)


def _names(body: ChatRequest) -> dict[str, str]:
    """What the engine calls otherwise than this request did."""
    names = {"prompt": "messages", "logprobs": "top_logprobs", "structured_outputs": body.structured_field}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


async def _answer(generation: Generation, body: ChatRequest) -> bytes:
    output = (await generation.final())[0]
    answer: dict[str, Any] = {
        "id": generation.request_id,
        "object": "chat.completion",
        "created": now(),
        "model": generation.engine.served_model_name,
        "seed": output.seed,
        "choices": [_choice(generation.engine, body, completion) for completion in output.outputs],
        "usage": usage([output]),
    }
    if body.return_token_ids:
        answer["prompt_token_ids"] = output.prompt_token_ids
    if body.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(output)
    return dumps(answer).encode()


def _choice(engine: ServedEngine, body: ChatRequest, completion: CompletionOutput) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": completion.index,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": _logprobs(engine, body, completion),
        "finish_reason": completion.finish_reason,
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

    def __init__(self, engine: ServedEngine, body: ChatRequest) -> None:
        self._engine, self._body = engine, body

    def __call__(self, _prompt: int, output: RequestOutput, new: CompletionOutput, first: bool) -> str | None:
        body = self._body
        wanted = body.logprobs or body.return_token_ids or body.continuous_usage
        if not (new.text or first or new.finish_reason or (wanted and new.token_ids)):
            return None
        role = '"role":"assistant",' if first else ""
        logprobs = dumps(_logprobs(self._engine, body, new)) if body.logprobs else "null"
        extra = ""
        if new.finish_reason is not None:
            extra += f',"stop_reason":{dumps(new.stop_reason)}'
        if body.return_token_ids:
            extra += f',"token_ids":{dumps(new.token_ids)}'
            if first:
                extra += f',"prompt_token_ids":{dumps(output.prompt_token_ids)}'
        return (
            f'"delta":{{{role}"content":{dumps(new.text)}}},"logprobs":{logprobs},'
            f'"finish_reason":{dumps(new.finish_reason)}{extra}'
        )
