"""POST /v1/responses, and GET and DELETE of stored ones."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.server.apis import Rules
from octavo.server.errors import ApiError, Dialect, openai_body
from octavo.server.generation import Generation
from octavo.server.openai.answers import dumps, new_id, now
from octavo.server.openai.body import BodySchema, off_loop, read
from octavo.server.openai.chat import ChatRequest, prepare, render
from octavo.server.openai.item_references import with_referenced
from octavo.server.openai.items import Item, Items, Totals, parts
from octavo.server.openai.models import in_path
from octavo.server.openai.reading import Readers
from octavo.server.openai.responses_input import (
    ResponsesRequest,
    as_chat,
    as_message,
    input_messages,
    namespaces,
)
from octavo.server.sse import EventStream
from octavo.server.state import ServerState, key_owner, state_of
from octavo.server.store import ResponseStore, Stored
from octavo.server.whole import Answer

router = APIRouter()
rules = {"/v1/responses": Rules(batched=True, queued=True)}

NAMES = {"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens",
         "response_format": "text", "structured_outputs": "text"}  # fmt: skip


def _event(error: ApiError) -> bytes:
    fields = {"type": "error", "message": str(error), "code": error.code, "param": error.param}
    return b"event: error\ndata: " + dumps(fields).encode() + b"\n\n"


dialect = Dialect(openai_body, _event, names=NAMES)


@router.post("/v1/responses", openapi_extra=BodySchema(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Answer in items: messages, function calls, reasoning. Stored unless `store` is false."""
    body, size = await read(request, ResponsesRequest)
    state = state_of(request)
    owner = key_owner(request.scope)
    earlier = b"[]"
    if body.previous_response_id is not None:
        earlier = stored_response(state, owner, body.previous_response_id, "previous_response_id").messages
    size += len(earlier)  # what was stored before is rendered again with what is new
    body.input = await with_referenced(body.input, _store(state), owner)
    messages, chat = await off_loop(size, _chat, body, earlier)
    name = new_id("resp", "_")
    generation, readers = await prepare(request, chat, size, name)
    made = _Response(state, owner, body, messages, generation, readers)
    headers = {"x-request-id": name}
    if body.stream:
        return EventStream(made.events(), headers, dialect)
    return Answer(made.whole, headers, dialect)


@router.get("/v1/responses/{name}", openapi_extra=in_path())
async def get_response(request: Request) -> Response:
    """A stored response."""
    state = state_of(request)
    body = stored_response(state, key_owner(request.scope), request.path_params["name"]).body
    return Response(body, media_type="application/json")


@router.post("/v1/responses/input_tokens", openapi_extra=BodySchema(ResponsesRequest))
async def count_tokens(request: Request) -> Response:
    """How many tokens a request's conversation would be, tools and all."""
    body, size = await read(request, ResponsesRequest)
    state = state_of(request)
    earlier = b"[]"
    if body.previous_response_id is not None:
        owner = key_owner(request.scope)
        earlier = stored_response(state, owner, body.previous_response_id, "previous_response_id").messages
    size += len(earlier)
    body.input = await with_referenced(body.input, _store(state), key_owner(request.scope))
    _, chat = await off_loop(size, _chat, body, earlier)
    engine = state.served(body.model)
    given = Readers.of(engine, state.settings, chat).use.given
    tokens = len(await render(engine, chat, size, given))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})


@router.delete("/v1/responses/{name}", openapi_extra=in_path())
async def delete_response(request: Request) -> Response:
    """Forget a stored response."""
    state, name = state_of(request), request.path_params["name"]
    owner = key_owner(request.scope)
    stored_response(state, owner, name)
    _store(state).remove(owner, name)
    return JSONResponse({"id": name, "object": "response.deleted", "deleted": True})


def _store(state: ServerState) -> ResponseStore:
    store: ResponseStore = state.kept.setdefault("responses", ResponseStore())
    return store


def stored_response(state: ServerState, owner: str, name: str, param: str | None = None) -> Stored:
    found = _store(state).get(owner, name)
    if found is None:
        message = f"there is no response {name[:100]!r} (any more)"
        raise ApiError(404, message, "not_found_error", param, "response_not_found")
    return found


def _chat(body: ResponsesRequest, earlier: bytes) -> tuple[list[dict[str, Any]], ChatRequest]:
    """(the whole conversation, the chat that goes on with it)."""
    messages = [*json.loads(earlier), *input_messages(body.input)]
    return messages, as_chat(body, messages)


class _Response:
    """One response while it is made."""

    def __init__(
        self,
        state: ServerState,
        owner: str,
        body: ResponsesRequest,
        messages: list[dict[str, Any]],
        generation: Generation,
        readers: Readers,
    ) -> None:
        self._state, self._owner, self._body, self._messages = state, owner, body, messages
        self._generation, self._readers = generation, readers
        self._created = now()
        self._spaces = namespaces(body.tools)
        self._items, self._totals = Items(), Totals()
        self._ids: dict[int, str] = {}
        self._sequence = 0

    async def whole(self) -> bytes:
        """The answer at once."""
        async with aclosing(parts(self._generation, self._readers, self._totals)) as stream:
            async for _, part in stream:
                self._items.add(part)
        _, written = await self._finish()
        return written

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as OpenAI's events. The first one comes with the first token: until then a full queue or
        a bad grammar is a plain HTTP error."""
        open_item: Item | None = None
        begun = False
        async with aclosing(parts(self._generation, self._readers, self._totals)) as stream:
            async for _, part in stream:
                news: list[bytes] = [] if begun else self._begun()
                begun = True
                for item, new, piece in self._items.add(part):
                    if new:
                        news += self._closed(open_item) + self._opened(item)
                        open_item = item
                    news.append(self._delta(item, piece))
                if news:
                    yield b"".join(news)
        yield b"".join(self._closed(open_item))
        status, written = await self._finish()
        empty = self._event(f"response.{status}", response=None)
        yield empty.replace(b'"response":null', b'"response":' + written, 1)

    def _begun(self) -> list[bytes]:
        begun = self._object("in_progress")
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: {dumps(event)}\n\n".encode()

    def _place(self, item: Item) -> dict[str, Any]:
        index = next(i for i, each in enumerate(self._items.items) if each is item)
        return {"item_id": self._id(index, item), "output_index": index}

    def _id(self, index: int, item: Item) -> str:
        prefix = {"text": "msg", "call": "fc", "reasoning": "rs"}[item.kind]
        return self._ids.setdefault(index, new_id(prefix, "_"))

    def _opened(self, item: Item) -> list[bytes]:
        place = self._place(item)
        empty = Item(item.kind, call_id=item.call_id, call=item.call)
        written = self._written(place["output_index"], empty, "in_progress")
        events = [self._event("response.output_item.added", output_index=place["output_index"], item=written)]
        if item.kind != "call":
            part = _content(item.kind, "")
            events.append(self._event("response.content_part.added", **place, content_index=0, part=part))
        return events

    def _delta(self, item: Item, piece: str) -> bytes:
        place = self._place(item)
        if item.kind == "call":
            return self._event("response.function_call_arguments.delta", **place, delta=piece)
        kind = "output_text" if item.kind == "text" else "reasoning_text"
        extra: dict[str, Any] = {"logprobs": []} if item.kind == "text" else {}
        return self._event(f"response.{kind}.delta", **place, content_index=0, delta=piece, **extra)

    def _closed(self, item: Item | None) -> list[bytes]:
        if item is None:
            return []
        place = self._place(item)
        if item.kind == "call":
            assert item.call is not None
            done = {"arguments": item.call.arguments, "name": item.call.name}
            events = [self._event("response.function_call_arguments.done", **place, **done)]
        else:
            kind = "output_text" if item.kind == "text" else "reasoning_text"
            extra: dict[str, Any] = {"logprobs": []} if item.kind == "text" else {}
            part = _content(item.kind, item.text)
            events = [
                self._event(f"response.{kind}.done", **place, content_index=0, text=item.text, **extra),
                self._event("response.content_part.done", **place, content_index=0, part=part),
            ]
        index = place["output_index"]
        written = self._written(index, item, self._status(item))
        return [*events, self._event("response.output_item.done", output_index=index, item=written)]

    def _written(self, index: int, item: Item, status: str) -> dict[str, Any]:
        head = {"id": self._id(index, item), "status": status}
        if item.kind == "call":
            assert item.call is not None
            arguments = "" if status == "in_progress" else item.call.arguments
            call = {"call_id": item.call_id, "name": item.call.name, "arguments": arguments}
            if (space := self._spaces.get(item.call.name)) is not None:
                call["namespace"] = space
            return {"type": "function_call", **head, **call}
        content = [] if status == "in_progress" else [_content(item.kind, item.text)]
        if item.kind == "reasoning":
            return {"type": "reasoning", **head, "summary": [], "content": content}
        return {"type": "message", **head, "role": "assistant", "content": content}

    @property
    def _cut(self) -> bool:
        return self._totals.reason == "length"

    def _status(self, item: Item) -> str:
        """Of an item that gets no more; a call that is not cut is whole."""
        whole = item.call is not None and not item.call.cut
        cut = self._cut and item is self._items.items[-1] and not whole
        return "incomplete" if cut else "completed"

    async def _finish(self) -> tuple[str, bytes]:
        """(status, the response as JSON). It is stored, unless the request says otherwise."""
        body = self._object("incomplete" if self._cut else "completed")
        messages = [*self._messages, as_message(self._items.items)] if self._body.store else []
        size = 4 * self._totals.prompt  # characters of the conversation, about
        written, conversation = await off_loop(size, _as_json, body, messages)
        if self._body.store:
            stored = Stored(conversation, written, tuple(self._ids.values()))
            _store(self._state).put(self._owner, self._generation.request_id, stored)
        return body["status"], written

    def _object(self, status: str) -> dict[str, Any]:
        body, params, totals = self._body, self._generation.params, self._totals
        usage = {
            "input_tokens": totals.prompt,
            "input_tokens_details": {"cached_tokens": totals.cached, "cache_write_tokens": 0},
            "output_tokens": totals.generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": totals.prompt + totals.generated,
        }
        return {
            "id": self._generation.request_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": now() if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": self._generation.engine.served_model_name,
            "output": [
                self._written(i, each, self._status(each)) for i, each in enumerate(self._items.items)
            ],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "store": body.store,
            "temperature": params.temperature,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "top_logprobs": 0,
            "background": False,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [_described(tool) for tool in body.tools],
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None if status == "in_progress" else usage,
            "user": body.user,
            "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
            "service_tier": "default",
            **{name: getattr(body, name) for name in _WRITTEN_BACK},
        }


_WRITTEN_BACK = ("max_tool_calls", "prompt_cache_key", "safety_identifier")


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    """A function with every member that clients' types ask for."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def _as_json(*values: Any) -> list[bytes]:
    return [dumps(value).encode() for value in values]


def _content(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
