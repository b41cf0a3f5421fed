"""GET /health, /metrics and /version."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import octavo
from octavo.server.apis import Rules
from octavo.server.state import ServerState, state_of

router = APIRouter()
rules = {"/health": Rules(keyed=False)}


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine makes progress; 503 while starting, draining, or stuck."""
    status = _status(state_of(request))
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


def _status(state: ServerState) -> str:
    if state.draining:
        return "draining"
    if state.engine is None:
        return "starting"
    return "ok" if state.engine.healthy else "unhealthy"


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics as text."""
    return Response(state_of(request).metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of Octavo."""
    return {"version": octavo.__version__}
