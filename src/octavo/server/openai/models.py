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
    """The one model that is served."""
    state = state_of(request)
    return {"object": "list", "data": [_model(state.served(), state.started)]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> dict[str, Any]:
    """That model by its name, which may hold slashes."""
    state = state_of(request)
    return _model(state.served(name), state.started)


def _model(engine: ServedEngine, created: int) -> dict[str, Any]:
    return {
        "id": engine.served_model_name,
        "object": "model",
        "created": created,
        "owned_by": "octavo",
        "max_model_len": engine.max_model_len,
    }
