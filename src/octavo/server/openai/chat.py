"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.params import MAX_LOGPROBS, CompletionOutput, RequestOutput, SamplingParams
from octavo.server.apis import Rules
from octavo.server.engine import ServedEngine
from octavo.server.errors import to_api_error
from octavo.server.generation import Generation
from octavo.server.openai.answers import dumps, make_generation, more_members, new_id, respond, usage
from octavo.server.openai.body import LONG_TEXT, BodySchema, Int, off_loop, read
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.reading import PROMPT_END, AnswerReader, Readers
from octavo.server.openai.sampling import GenerationRequest
from octavo.server.openai.shapes import Messages, ToolChoice, Tools, Variables
from octavo.server.state import state_of

router = APIRouter()
rules = {"/v1/chat/completions": Rules(batched=True, queued=True)}

RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "max_tokens", "self",
     "template", "tokenizer"}
)  # fmt: skip
"""What chat_template_kwargs must not set: names that rendering uses itself."""


class ChatRequest(GenerationRequest, defer_build=False):
    """POST /v1/chat/completions. Without max_tokens the answer may fill the context."""

    messages: Messages
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Variables = Field(default={})
    tools: Tools = Field(default=[])
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True

    def sampling_params(self) -> SamplingParams:
        """SamplingParams of this request.

        Raises:
            InvalidRequestError: a value is out of range, or two contradict each other.
        """
        top = self.top_logprobs
        if top is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
        if top is not None and not 0 <= top <= MAX_LOGPROBS:
            raise InvalidRequestError(f"top_logprobs must be from 0 to {MAX_LOGPROBS}", "top_logprobs")
        given, older = self.max_completion_tokens, self.max_tokens
        if given is not None and older is not None and given != older:
            raise InvalidRequestError(
                "max_completion_tokens and max_tokens differ: give one of them", "max_completion_tokens"
            )
        params = self.params(older if given is None else given, (top or 0) if self.logprobs else None)
        return self.searched(params)


@router.post("/v1/chat/completions", openapi_extra=BodySchema(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """One answer, or n, to a conversation; streamed or whole. `seed` is the one that was used."""
    body, size = await read(request, ChatRequest)
    names = _names(body)
    try:
        generation, readers = await prepare(request, body, size, new_id("chatcmpl"))
    except InvalidRequestError as error:
        raise to_api_error(error, names) from None
    return respond(generation, body, _Writer(body, readers), names)


async def prepare(
    request: Request, body: ChatRequest, size: int, request_id: str
) -> tuple[Generation, Readers]:
    """Check a conversation and its tools, and bind them to the engine.

    Raises:
        InvalidRequestError, ApiError: something in it cannot be served.
    """
    state = state_of(request)
    engine = state.served(body.model)
    readers = Readers.of(engine, state.settings, body)
    prompt = await render(engine, body, size, readers.use.given)
    generation = make_generation(request, body, request_id, [prompt], readers.params, "messages")
    return generation, replace(readers, prompt_end=prompt[-PROMPT_END:])


async def render(
    engine: ServedEngine, body: ChatRequest, size: int, tools: Sequence[dict[str, Any]] = ()
) -> list[int]:
    """The conversation as token ids.

    Args:
        size: characters of it, about.
        tools: that may be called.

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
        tools=list(tools) or None,
        add_generation_prompt=add,
        continue_final_message=body.continue_final_message,
        **body.chat_template_kwargs,
    )
    return await off_loop(size if engine.template_is_plain else LONG_TEXT + 1, call)


def _names(body: ChatRequest) -> dict[str, str]:
    """What the engine calls otherwise than this request did."""
    form, wanted = body.shape
    shape = "tools" if wanted is None and body.tools else form
    names = {"prompt": "messages", "logprobs": "top_logprobs", "structured_outputs": shape, "beam_width": "n"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


class _Writer:
    """Writes the answers to a chat (see answers.Writer)."""

    objects = ("chat.completion", "chat.completion.chunk")

    def __init__(self, body: ChatRequest, readers: Readers) -> None:
        self._body, self._readers = body, readers
        self._open: dict[int, AnswerReader] = {}

    def members(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        answer: dict[str, Any] = {
            "seed": output.seed,
            "choices": [self._choice(completion) for completion in output.outputs],
            "usage": usage(outputs),
        }
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = output.prompt_token_ids
        if self._body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(output)
        return answer

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        reader = self._readers.new()
        part = reader.feed(completion.text, completion.finish_reason or "stop")
        empty = None if part.calls or self._readers.use.forced else ""
        message: dict[str, Any] = {"role": "assistant", "content": empty, "refusal": None}
        message |= part.members(0)
        for call in message.get("tool_calls") or ():
            del call["index"]  # deltas number their calls, messages do not
        choice: dict[str, Any] = {
            "index": completion.index,
            "message": message,
            "logprobs": self._logprobs(completion),
            "finish_reason": self._readers.finish_reason(completion.finish_reason, reader),
            "stop_reason": completion.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids
        return choice

    def chunk(self, prompt: int, output: RequestOutput, new: CompletionOutput, first: bool) -> Sequence[str]:
        body = self._body
        reader = self._open.get(new.index)
        if reader is None:
            reader = self._open[new.index] = self._readers.new()
        known = reader.num_calls
        part = reader.feed(new.text, new.finish_reason)
        wanted = body.logprobs or body.return_token_ids or body.continuous_usage
        if part.empty and not (first or new.finish_reason or (wanted and new.token_ids)):
            return ()
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if not part.reasoning and not part.calls:
            delta["content"] = None if self._readers.use.forced else ""
        delta |= part.members(known)
        logprobs = dumps(self._logprobs(new)) if body.logprobs else "null"
        more = more_members(output.prompt_token_ids, new, first, body.return_token_ids)
        reason = self._readers.finish_reason(new.finish_reason, reader)
        before = f'"delta":{dumps(delta)},"logprobs":{logprobs},"finish_reason":'
        if part.calls and reason is not None:  # clients read a call before they hear that the answer ended
            return (f"{before}null", f'"delta":{{}},"logprobs":null,"finish_reason":{dumps(reason)}{more}')
        return (f"{before}{dumps(reason)}{more}",)

    def _logprobs(self, completion: CompletionOutput) -> dict[str, Any] | None:
        if completion.logprobs is None:
            return None
        tokenizer, top = self._readers.engine.tokenizer, self._body.top_logprobs or 0
        return chat_logprobs(tokenizer, completion.token_ids, completion.logprobs, top)
