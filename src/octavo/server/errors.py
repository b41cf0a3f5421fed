"""Errors on the wire: OpenAI's error object for everything that goes wrong."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from octavo.errors import (
    GRAMMAR_FAILED,
    NO_TOKEN_ALLOWED,
    CapacityError,
    EngineDeadError,
    InvalidRequestError,
    OctavoError,
    OverloadedError,
    RequestFailedError,
    ShuttingDownError,
)

logger = logging.getLogger("octavo.server")

MAX_MESSAGE = 500
"""Characters of an error message: a value quoted in it may be megabytes long."""


class ApiError(OctavoError):
    """An error with its HTTP status.

    Attributes:
        status, type, param, code: as in OpenAI's error object.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.type, self.param, self.code = status, type, param, code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """{"error": {"message", "type", "param", "code"}} as JSON."""
        message = str(self)
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 3] + "..."
        fields = {"message": message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": fields}, separators=(",", ":")).encode()

    def response(self) -> Response:
        """The HTTP response."""
        return Response(self.body(), self.status, self.headers, media_type="application/json")


def model_not_found(asked: str, served: str) -> ApiError:
    """404: another model's name."""
    message = f"the model {asked[:200]!r} does not exist here; this server has {served!r}"
    return ApiError(404, message, "not_found_error", "model", "model_not_found")


def to_api_error(error: BaseException, params: Mapping[str, str] | None = None) -> ApiError:
    """What to tell the client of an exception.

    Args:
        params: names of fields in the request by the engine's names for them, where they differ.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        message, param = str(error), error.param
        if param is not None and params and param in params:
            message = message.replace(param, params[param], 1) if message.startswith(param) else message
            param = params[param]
        return ApiError(400, message, param=param)
    if isinstance(error, OverloadedError):
        retry = {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
        if isinstance(error, ShuttingDownError):
            return ApiError(503, str(error), "service_unavailable", headers=retry)
        return ApiError(429, str(error), "overloaded_error", code="overloaded", headers=retry)
    if isinstance(error, CapacityError):
        return ApiError(400, str(error), code="capacity")
    if isinstance(error, RequestFailedError) and str(error).startswith(GRAMMAR_FAILED):
        return to_api_error(InvalidRequestError(str(error), "structured_outputs"), params)
    if isinstance(error, RequestFailedError) and str(error).startswith(NO_TOKEN_ALLOWED):
        return ApiError(400, str(error), code="no_token_allowed")  # what the request asks for together
    if isinstance(error, RequestFailedError):
        return ApiError(500, str(error), "server_error", code="generation_failed")
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), "server_error", code="engine_dead")
    reference = secrets.token_hex(4)
    # The trace may be needed by whoever runs the server; the client gets a number to quote.
    logger.error("internal error %s", reference, exc_info=error)
    return ApiError(500, f"internal error (reference {reference})", "server_error", code="internal_error")


def short(value: Any, limit: int = 60) -> str:
    """repr of a value for a message, cut."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
