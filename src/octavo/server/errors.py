"""Errors on the wire: what went wrong, with its HTTP status, and how an API says it."""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from octavo.errors import (
    GRAMMAR_FAILED,
    NO_TOKEN_ALLOWED,
    CapacityError,
    EngineDeadError,
    EngineEndedError,
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


class ContextLengthError(ApiError):
    """400: a prompt fills the context. By these words, OpenAI's, clients know to shorten the conversation."""

    def __init__(self, tokens: int, most: int, field: str) -> None:
        self.tokens, self.most = tokens, most
        more = "" if tokens > most else ", and an answer takes at least one more"
        message = f"This model's maximum context length is {most} tokens. However, your {field} resulted in"
        message = f"{message} {tokens} tokens{more}. Please reduce the length of the {field}."
        super().__init__(400, message, param=field, code="context_length_exceeded")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an API says what went wrong, and how its streams end.

    Attributes:
        body: an error as the JSON of a response.
        event: the same as the last event of a stream that has begun.
        end: the last event of a stream where all went well.
        id_header: where its clients look for a request's id.
        names: fields in the API's requests by the engine's names for them, where they differ.
    """

    body: Callable[[ApiError], bytes]
    event: Callable[[ApiError], bytes]
    end: bytes = b""
    names: Mapping[str, str] = field(default_factory=dict)
    id_header: str = "x-request-id"

    def response(self, error: BaseException, names: Mapping[str, str] | None = None) -> Response:
        """The HTTP response to an exception.

        Args:
            names: those of this one request, where they are others than the API's.
        """
        found = to_api_error(error, self.names if names is None else names)
        headers = {self.id_header: f"req_{secrets.token_hex(16)}", **found.headers}
        return Response(self.body(found), found.status, headers, media_type="application/json")

    def last_event(self, error: BaseException, names: Mapping[str, str] | None = None) -> bytes:
        """What a stream that has begun ends with when this is raised."""
        return self.event(to_api_error(error, self.names if names is None else names))


def openai_body(error: ApiError) -> bytes:
    """{"error": {"message", "type", "param", "code"}} as JSON."""
    message = str(error)
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 3] + "..."
    fields = {"message": message, "type": error.type, "param": error.param, "code": error.code}
    return json.dumps({"error": fields}, separators=(",", ":")).encode()


DONE = b"data: [DONE]\n\n"
OPENAI = Dialect(openai_body, lambda error: b"data: " + openai_body(error) + b"\n\n" + DONE, DONE)
"""Also of what belongs to no API: /health, or a path that nobody serves."""


def model_not_found(asked: str, served: Iterable[str]) -> ApiError:
    """404: another model's name."""
    message = f"the model {asked[:200]!r} does not exist here; this server has {', '.join(map(repr, served))}"
    message += " (--served-model-name gives it other names)"
    return ApiError(404, message, "not_found_error", "model", "model_not_found")


def to_api_error(error: BaseException, params: Mapping[str, str] | None = None) -> ApiError:
    """What to tell the client of an exception.

    Args:
        params: names of fields in the request by the engine's names for them, where they differ.
    """
    if isinstance(error, ContextLengthError) and params and error.param is not None and error.param in params:
        return ContextLengthError(error.tokens, error.most, params[error.param])
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):  # 400, in the names of fields that the client sent
        message, param = str(error), error.param
        if param is not None and params and param in params:
            message = message.replace(param, params[param], 1) if message.startswith(param) else message
            param = params[param]
        return ApiError(400, message, param=param)
    if isinstance(error, OverloadedError):  # 429, or 503 while the server drains: come again
        retry = {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
        if isinstance(error, ShuttingDownError):
            return ApiError(503, str(error), "service_unavailable", headers=retry)
        return ApiError(429, str(error), "overloaded_error", code="overloaded", headers=retry)
    if isinstance(error, CapacityError):  # this request needs more memory than there is
        return ApiError(400, str(error), code="capacity")
    if isinstance(error, RequestFailedError) and str(error).startswith(GRAMMAR_FAILED):
        return to_api_error(InvalidRequestError(str(error), "structured_outputs"), params)
    if isinstance(error, RequestFailedError) and str(error).startswith(NO_TOKEN_ALLOWED):
        return ApiError(400, str(error), code="no_token_allowed")  # what the request asks for together
    if isinstance(error, EngineEndedError):  # no request will be answered until a restart
        return ApiError(503, str(error), "server_error", code="engine_dead")
    # Paths and traces are for whoever runs the server; the client gets a number to quote.
    reference, status, code = secrets.token_hex(4), 500, "internal_error"
    if isinstance(error, RequestFailedError):  # a step failed: the request was fine
        code = "generation_failed"
    elif isinstance(error, EngineDeadError):
        status, code = 503, "engine_dead"
    traced = None if isinstance(error, OctavoError) else error
    logger.error("internal error %s: %s", reference, error, exc_info=traced)
    return ApiError(status, f"internal error (reference {reference})", "server_error", code=code)


def short(value: Any, limit: int = 60) -> str:
    """repr of a value for a message, cut."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
