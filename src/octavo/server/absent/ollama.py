"""Ollama's API, which nobody serves here: its clients read a line in their own error shape."""

from __future__ import annotations

import json

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.errors import MAX_MESSAGE, ApiError, Dialect

METHODS = ["GET", "HEAD", "POST", "DELETE"]
INSTEAD = {
    "chat": "POST /v1/chat/completions answers",
    "generate": "POST /v1/completions answers",
    "embed": "POST /v1/embeddings answers",
    "embeddings": "POST /v1/embeddings answers",
    "tags": "GET /v1/models names what is served, and octavo list what is kept",
    "ps": "GET /v1/models names what is served",
    "show": "GET /v1/models names what is served",
    "version": "GET /version says it",
    "pull": "octavo pull brings a model",
    "push": "models are not published from here",
    "create": "octavo serve takes a model file, or a folder",
    "copy": "octavo serve --served-model-name gives names",
    "delete": "octavo rm removes a model",
}
"""What there is in the place of /api/NAME."""
OTHERS = "this server speaks the OpenAI API at /v1"


def _body(error: ApiError) -> bytes:
    return json.dumps({"error": str(error)[:MAX_MESSAGE]}).encode()


router = APIRouter(include_in_schema=False)
dialect = Dialect(_body, lambda error: _body(error) + b"\n")


@router.api_route("/api", methods=METHODS)
@router.api_route("/api/{name:path}", methods=METHODS)
async def absent(request: Request) -> Response:
    """Nothing but the line; the name ends where a path or a blob's hash begins."""
    name = request.path_params.get("name", "")
    instead = INSTEAD.get(name.partition("/")[0], OTHERS)
    message = f"Ollama's API is not served ({request.url.path[:100]}): {instead}"
    raise ApiError(404, message, "not_found_error", code="not_supported")
