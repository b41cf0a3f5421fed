"""create_app: the ASGI application over one engine."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import octavo
from octavo.errors import OctavoError
from octavo.server import apis, field_tables
from octavo.server.claims import DIALECT
from octavo.server.edge_metrics import EdgeCollector
from octavo.server.engine import ServedEngine
from octavo.server.errors import ApiError, Dialect
from octavo.server.keys import ApiKeys
from octavo.server.limits import LimitsMiddleware
from octavo.server.metrics import Metrics
from octavo.server.openai.body import BodySchema
from octavo.server.queueing import FairQueue
from octavo.server.state import ServerSettings, ServerState


def create_app(
    engine: ServedEngine | None, settings: ServerSettings | None = None, keys: ApiKeys | None = None
) -> FastAPI:
    """The application. Its state is app.state.octavo.

    Args:
        engine: None while the model is still loading: give it to attach() later. Until then
            /health and every endpoint answer 503.
        keys: instead of settings.api_keys.

    Raises:
        EndpointError: a file of endpoints cannot be served.
    """
    settings = settings or ServerSettings()
    if keys is None and settings.api_keys:
        keys = ApiKeys(settings.api_keys)
    queue = FairQueue(settings.max_waiting_tokens, settings.queue_timeout_s, settings.max_input_tokens)
    metrics = Metrics()
    state = ServerState(settings, metrics, queue, keys=keys)
    edge = EdgeCollector(state)
    metrics.add(edge)
    # The interactive documentation loads its scripts from elsewhere: not from here.
    app = FastAPI(
        title="Octavo", version=octavo.__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    endpoints = apis.find()
    paths = apis.table(endpoints)
    app.state.octavo, app.state.paths, app.state.edge = state, paths, edge
    app.state.field_lists, app.state.claims = field_tables.LISTS, apis.claims(endpoints, paths)
    app.router.routes += apis.in_order(endpoints)
    for kind in (OctavoError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, functools.partial(_error, paths))
    app.add_middleware(LimitsMiddleware, state=state, paths=paths)
    app.openapi = lambda: _openapi(app, endpoints)  # type: ignore[method-assign]  # FastAPI's documented way
    if engine is not None:
        attach(app, engine)
    return app


def attach(app: FastAPI, engine: ServedEngine) -> None:
    """Begin to serve this engine."""
    state: ServerState = app.state.octavo
    state.attach(engine)


async def _error(paths: apis.Paths, request: Request, error: Exception) -> Response:
    """What an endpoint has raised, or Starlette and FastAPI before it, in the words of the path's API."""
    dialect: Dialect = request.scope.get(DIALECT) or paths[request.scope["path"]].dialect
    return dialect.response(_readable(request, error))


def _readable(request: Request, error: Exception) -> Exception:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][1:]))[:100]
        return ApiError(400, f"{where}: {first['msg']}" if where else first["msg"], param=where or None)
    if not isinstance(error, HTTPException):
        return error
    message = str(error.detail)
    if error.status_code == 404 and message == "Not Found":
        message = f"there is no path {request.url.path[:100]!r}"
    elif error.status_code == 405 and message == "Method Not Allowed":
        message = f"{request.url.path[:100]} does not take {request.method}"
    return ApiError(error.status_code, message, headers=error.headers)


def _openapi(app: FastAPI, endpoints: list[apis.Endpoints]) -> dict[str, Any]:
    """FastAPI's document, with the models inside bodies that endpoints parse by hand among its components."""
    if app.openapi_schema is None:
        routes = [route for each in endpoints for route in each.router.routes]
        extras = [getattr(route, "openapi_extra", None) for route in routes]
        inside = [extra.fill() for extra in extras if isinstance(extra, BodySchema)]
        schema = get_openapi(title=app.title, version=app.version, routes=routes)
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        for models in inside:
            components |= models
        app.openapi_schema = schema
    return app.openapi_schema
