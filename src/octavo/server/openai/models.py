"""GET /v1/models and /v1/models/{id}, in OpenAI's shape, or in Anthropic's for its clients."""

from __future__ import annotations

import datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.server.engine import ServedEngine
from octavo.server.state import state_of

router = APIRouter()


def in_path(name: str = "name") -> dict[str, Any]:
    """openapi_extra of a path with {name}, which its endpoint reads from request.path_params.

    FastAPI reads annotated parameters by a module of Pydantic's that takes 20 ms to import, and so do the
    results of endpoints that are no Response.
    """
    schema = {"type": "string", "title": name.title()}
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": schema}]}


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The model that is served, under each of its names."""
    state = state_of(request)
    state.served()
    data = [_model(request, name, engine, state.started) for name, engine in state.served_names.items()]
    if _for_anthropic(request):
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return JSONResponse({"data": data, **ends, "has_more": False})
    return JSONResponse({"object": "list", "data": data})


@router.get("/v1/models/{name:path}", openapi_extra=in_path())
async def get_model(request: Request) -> Response:
    """That model by one of its names, which may hold slashes."""
    state, name = state_of(request), request.path_params["name"]
    return JSONResponse(_model(request, name, state.served(name), state.started))


def _for_anthropic(request: Request) -> bool:
    """Anthropic's clients ask at the same path, and say in each request which version they speak."""
    return "anthropic-version" in request.headers


def _model(request: Request, name: str, engine: ServedEngine, created: int) -> dict[str, Any]:
    if _for_anthropic(request):
        at = datetime.datetime.fromtimestamp(created, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        most = {"max_input_tokens": engine.max_model_len, "max_tokens": engine.max_model_len}
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": at,
            "lifecycle": "active",
            **most,
        }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "octavo",
        "max_model_len": engine.max_model_len,
    }
