"""What says whether the server lives and serves, and /metrics and /version. The first need no key.

What each says in every state stands in docs/how-to/serve.md.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import octavo
from octavo.server.apis import Rules
from octavo.server.state import ServerState, state_of

router = APIRouter()
rules = {path: Rules(keyed=False) for path in ("/health", "/live", "/ping", "/ready")}

ALIVE = ("ok", "starting", "draining")
"""States in which a restart would help nobody."""


@router.get("/live")
async def live(request: Request) -> Response:
    """200 while the process should go on; 503 where its engine is dead or stuck."""
    state = status(state_of(request))
    return JSONResponse({"status": state}, 200 if state in ALIVE else 503)


@router.get("/ready")
@router.get("/health")
@router.get("/ping")
async def ready(request: Request) -> Response:
    """200 while requests are served; 503 while starting, draining, or stuck."""
    server = state_of(request)
    state = status(server)
    content = {"status": state}
    if server.engine is not None and not server.engine.grammars.available:
        content["grammars"] = "unavailable"  # no reason to end a server that answers all else
    return JSONResponse(content, 200 if state == "ok" else 503)


def status(state: ServerState) -> str:
    """ok, starting, draining or unhealthy."""
    engine = state.engine
    # An engine that was told to stop is no reason for a restart; one that failed is, to the process's end.
    if engine is not None and not engine.healthy and (not state.stopping or engine.failure is not None):
        return "unhealthy"
    if state.draining or state.leaving:
        return "draining"
    return "starting" if state.engine is None else "ok"


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics as text, written by a thread.

    FastAPI would call a plain function in one, and import anyio's sockets for it when the first scrape comes.
    """
    text = await asyncio.to_thread(state_of(request).metrics.render)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version() -> Response:
    """The version of Octavo."""
    return JSONResponse({"version": octavo.__version__})
