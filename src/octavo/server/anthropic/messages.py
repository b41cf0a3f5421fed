"""POST /v1/messages."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.errors import InvalidRequestError
from octavo.server.anthropic.protocol import CountTokensRequest, MessagesRequest, as_chat, folded
from octavo.server.apis import Rules
from octavo.server.errors import MAX_MESSAGE, ApiError, ContextLengthError, Dialect
from octavo.server.generation import Generation
from octavo.server.openai.answers import dumps, new_id
from octavo.server.openai.body import BodySchema, off_loop, read
from octavo.server.openai.chat import ChatRequest, prepare, render
from octavo.server.openai.items import Item, Items, Totals, parts
from octavo.server.openai.reading import Readers
from octavo.server.sse import EventStream
from octavo.server.state import state_of
from octavo.server.whole import Answer

T = TypeVar("T")
router = APIRouter()
rules = {"/v1/messages": Rules(batched=True, queued=True)}

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip
DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
"""What clients read of an error about a field: these go on without a thread, with all messages."""
DIRECT = {"type": "direct"}
"""Who calls a tool: the model, not a program that it wrote."""
DELTA_USAGE = (
    "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "server_tool_use",
    "output_tokens", "output_tokens_details",
)  # fmt: skip
"""Of a message's usage, what a stream's end says again."""
NAMES = {"prompt": "messages", "stop": "stop_sequences", "structured_outputs": "tools"}


def _body(error: ApiError) -> bytes:
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = str(error)[:MAX_MESSAGE]
    if isinstance(error, ContextLengthError):  # by these words its clients know to shorten the conversation
        message = f"prompt is too long: {error.tokens} tokens > {error.most} maximum"
    said: dict[str, Any] = {"type": kind, "message": message}
    if (details := DETAILS.get(error.param or "")) is not None:
        said["details"] = details
    return json.dumps({"type": "error", "error": said}).encode()


dialect = Dialect(
    _body, lambda error: b"event: error\ndata: " + _body(error) + b"\n\n", names=NAMES, id_header="request-id"
)


@router.post("/v1/messages", openapi_extra=BodySchema(MessagesRequest))
async def create_message(request: Request) -> Response:
    """Answer a conversation in content blocks: text, thinking, tool_use."""
    body, size = await read(request, MessagesRequest)
    name = new_id("msg", "_")
    chat = await off_loop(size, as_chat, body)
    generation, readers = await with_late_system(chat, lambda said: prepare(request, said, size, name))
    made = _Message(generation, readers)
    headers = {"request-id": name}
    if body.stream:
        return EventStream(made.events(), headers, dialect)
    return Answer(made.whole, headers, dialect)


@router.post("/v1/messages/count_tokens", openapi_extra=BodySchema(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation would be, tools and all."""
    body, size = await read(request, CountTokensRequest)
    chat = await off_loop(size, as_chat, body)
    state = state_of(request)
    engine = state.served(body.model)
    given = Readers.of(engine, state.settings, chat).use.given
    tokens = await with_late_system(chat, lambda said: render(engine, said, size, given))
    return JSONResponse({"input_tokens": len(tokens)})


async def with_late_system(chat: ChatRequest, render: Callable[[ChatRequest], Awaitable[T]]) -> T:
    """What render makes of a conversation; where the template refuses a late system message, of one without.

    Raises:
        InvalidRequestError: the template refuses it either way.
    """
    try:
        return await render(chat)
    except InvalidRequestError:
        if not any(message["role"] == "system" for message in chat.messages[1:]):
            raise
    return await render(chat.model_copy(update={"messages": folded(chat.messages)}))


class _Message:
    """One answer while it is made."""

    def __init__(self, generation: Generation, readers: Readers) -> None:
        self._generation, self._readers = generation, readers
        self._items, self._totals = Items(), Totals()

    async def whole(self) -> bytes:
        """The answer at once."""
        async with aclosing(parts(self._generation, self._readers, self._totals)) as stream:
            async for _, part in stream:
                self._items.add(part)
        content = [_block(item, whole=True) for item in self._items.items]
        return dumps({**self._head(), "content": content, **self._end(), "usage": self._usage()}).encode()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as Anthropic's events."""
        begun, index = False, -1
        async with aclosing(parts(self._generation, self._readers, self._totals)) as stream:
            async for _, part in stream:
                news: list[bytes] = []
                if not begun:
                    begun = True
                    news.append(_event("message_start", message=self._started()))
                for item, new, piece in self._items.add(part):
                    if new:
                        news += [_event("content_block_stop", index=index)] if index >= 0 else []
                        index += 1
                        block = _block(item, whole=False)
                        news.append(_event("content_block_start", index=index, content_block=block))
                    news.append(_event("content_block_delta", index=index, delta=_delta(item, piece)))
                if news:
                    yield b"".join(news)
        end = [_event("content_block_stop", index=index)] if index >= 0 else []
        usage = self._usage()
        usage = {name: usage[name] for name in DELTA_USAGE}
        end.append(_event("message_delta", delta=self._end(), usage=usage))
        yield b"".join([*end, _event("message_stop")])

    def _head(self) -> dict[str, Any]:
        model = self._generation.engine.served_model_name
        return {"id": self._generation.request_id, "type": "message", "role": "assistant", "model": model}

    def _started(self) -> dict[str, Any]:
        usage = {**self._usage(), "output_tokens": 0}
        return {**self._head(), "content": [], **_ended(None, None), "usage": usage}

    def _end(self) -> dict[str, Any]:
        called = any(item.kind == "call" for item in self._items.items)
        stop = self._totals.stop if isinstance(self._totals.stop, str) else None
        reason = "stop_sequence" if stop else "tool_use" if called else "end_turn"
        if self._totals.reason == "length":
            reason = "max_tokens"
        return _ended(reason, stop)

    def _usage(self) -> dict[str, Any]:
        totals = self._totals
        return {
            "input_tokens": totals.prompt - totals.cached,
            "cache_read_input_tokens": totals.cached,
            "cache_creation_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "server_tool_use": None,
            "service_tier": "standard",
            "inference_geo": None,
            "output_tokens": totals.generated,
            "output_tokens_details": None,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {dumps({'type': kind, **fields})}\n\n".encode()


def _ended(reason: str | None, stop: str | None) -> dict[str, Any]:
    """How a message ended, with the members that are null wherever nobody refuses and nothing runs code."""
    return {"stop_reason": reason, "stop_sequence": stop, "stop_details": None, "container": None}


def _block(item: Item, whole: bool) -> dict[str, Any]:
    if item.call is not None:
        given = json.loads(item.call.arguments) if whole and not item.call.cut else {}
        name = "toolu_" + item.call_id.removeprefix("call_")
        return {"type": "tool_use", "id": name, "name": item.call.name, "input": given, "caller": DIRECT}
    text = item.text if whole else ""
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text, "citations": None}


def _delta(item: Item, piece: str) -> dict[str, Any]:
    if item.call is not None:
        return {"type": "input_json_delta", "partial_json": piece}
    if item.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": piece}
    return {"type": "text_delta", "text": piece}
