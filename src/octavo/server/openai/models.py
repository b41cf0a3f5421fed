"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from octavo.server.engine import ServedEngine
from octavo.server.state import state_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The model that is served, under each of its names."""
    state = state_of(request)
    state.served()
    data = [_model(name, engine, state.started) for name, engine in state.served_names.items()]
    return {"object": "list", "data": data}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> dict[str, Any]:
    """That model by one of its names, which may hold slashes."""
    state = state_of(request)
    return _model(name, state.served(name), state.started)


def _model(name: str, engine: ServedEngine, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "octavo",
        "max_model_len": engine.max_model_len,
    }
