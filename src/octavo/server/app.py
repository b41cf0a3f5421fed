"""create_app: the ASGI application over one engine."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import octavo
from octavo.errors import OctavoError
from octavo.server import system
from octavo.server.anthropic import messages
from octavo.server.engine import ServedEngine
from octavo.server.errors import ApiError, to_api_error
from octavo.server.limits import Doors
from octavo.server.metrics import Metrics
from octavo.server.openai import chat, completions, embeddings, models, responses, tokens
from octavo.server.openai.protocol import StreamOptions, StructuredOutputs
from octavo.server.state import ServerSettings, ServerState

ROUTERS = (
    system.router,
    models.router,
    chat.router,
    completions.router,
    embeddings.router,
    responses.router,
    messages.router,
    tokens.router,
)

PARTS = (StreamOptions, StructuredOutputs)
"""Models inside the bodies that endpoints parse by hand."""


def create_app(engine: ServedEngine | None, settings: ServerSettings | None = None) -> FastAPI:
    """The application. Its state is app.state.octavo.

    Args:
        engine: None while the model is still loading: give it to attach() later. Until then
            /health and every endpoint answer 503.
    """
    state = ServerState(settings or ServerSettings(), Metrics())
    # The interactive documentation loads its scripts from elsewhere: not from here.
    app = FastAPI(
        title="Octavo", version=octavo.__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.octavo = state
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(OctavoError, _octavo_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(Doors, state=state)
    # FastAPI's documented way to bring one's own document; its types do not know it.
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    if engine is not None:
        attach(app, engine)
    return app


def attach(app: FastAPI, engine: ServedEngine) -> None:
    """Begin to serve this engine."""
    state: ServerState = app.state.octavo
    state.metrics.attach(engine)
    state.engine = engine


async def _octavo_error(_request: Request, error: Exception) -> Response:
    return to_api_error(error).response()


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is no path {request.url.path[:100]!r}"
    elif error.status_code == 405:
        message = f"{request.url.path[:100]} does not take {request.method}"
    return ApiError(error.status_code, message, headers=error.headers).response()


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        for model in PARTS:
            components[model.__name__] = model.model_json_schema()
        app.openapi_schema = schema
    return app.openapi_schema
