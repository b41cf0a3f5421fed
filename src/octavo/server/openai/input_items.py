"""GET /v1/responses/{id}/input_items: what a stored response was an answer to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.server.openai.answers import dumps
from octavo.server.openai.body import off_loop
from octavo.server.openai.models import in_path
from octavo.server.openai.responses import dialect, stored_response
from octavo.server.state import key_owner, state_of

__all__ = ["dialect", "router"]

router = APIRouter()
MOST = 100
"""Items of a page."""
ORDERS = ("desc", "asc")


def _documented() -> dict[str, Any]:
    """openapi_extra: what is read from the path and from the query."""
    schemas: dict[str, dict[str, Any]] = {
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 20},
        "order": {"type": "string", "enum": list(ORDERS), "default": ORDERS[0]},
        "after": {"type": "string"},
    }
    found = in_path()
    for name, schema in schemas.items():
        found["parameters"].append({"name": name, "in": "query", "required": False, "schema": schema})
    return found


@router.get("/v1/responses/{name}/input_items", openapi_extra=_documented())
async def input_items(request: Request) -> Response:
    """The conversation that a response answers, earlier turns too, a page of it: the latest items first."""
    name, query = request.path_params["name"], request.query_params
    given, order, after = query.get("limit", "20"), query.get("order", ORDERS[0]), query.get("after")
    limit = int(given) if given.isascii() and given.isdecimal() and len(given) < 4 else 0
    if not 1 <= limit <= MOST:
        raise InvalidRequestError(
            f"limit must be a whole number from 1 to {MOST}, not {given[:100]!r}", "limit"
        )
    if order not in ORDERS:
        raise InvalidRequestError(f"order must be {' or '.join(ORDERS)}, not {order[:100]!r}", "order")
    kept = stored_response(state_of(request), key_owner(request.scope), name).messages
    page = await off_loop(len(kept), _page, kept, name, limit, order == "desc", after)
    return Response(page, media_type="application/json")


def _page(kept: bytes, name: str, limit: int, latest_first: bool, after: str | None) -> bytes:
    asked = json.loads(kept)[:-1]  # the last message is the answer
    place = name.removeprefix("resp_")
    items = [{**item, "id": f"{item['id']}_{place}_{i}"} for i, item in enumerate(_items(asked))]
    if latest_first:
        items.reverse()
    begin = 0
    if after is not None:
        begin = 1 + next((i for i, item in enumerate(items) if item["id"] == after), len(items))
        if begin > len(items):
            raise InvalidRequestError(f"after: there is no item {after[:100]!r}", "after")
    page = items[begin : begin + limit]
    return dumps(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": begin + limit < len(items),
        }
    ).encode()


def _items(messages: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages of a chat as items; each one's id is only how it begins."""
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "tool":
            output = {"call_id": message.get("tool_call_id"), "output": content}
            yield {"id": "fco", "type": "function_call_output", "status": "completed", **output}
            continue
        if content:
            kind = "output_text" if role == "assistant" else "input_text"
            parts = [{"type": kind, "text": content}] if isinstance(content, str) else content
            yield {"id": "msg", "type": "message", "status": "completed", "role": role, "content": parts}
        for call in message.get("tool_calls", ()):
            named = {"call_id": call.get("id"), **call["function"]}
            yield {"id": "fc", "type": "function_call", "status": "completed", **named}
