"""Errors as TGI says them: {"error", "error_type"}, with its statuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from octavo.server.errors import MAX_MESSAGE, ApiError, ContextLengthError, Dialect, to_api_error

NAMES = {
    "prompt": "inputs",
    "max_tokens": "max_new_tokens",
    "truncate_prompt_tokens": "truncate",
    "n": "best_of",
    "logprobs": "details",
    "prompt_logprobs": "decoder_input_details",
    "structured_outputs": "grammar",
}
"""Fields of a request by the engine's names for them."""

VALIDATION, GENERATION, OVERLOADED, INCOMPLETE = 422, 424, 429, 500
_BY_CODE = {"generation_failed": GENERATION, "engine_dead": GENERATION, "aborted": INCOMPLETE}
_TYPES = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    GENERATION: "generation",
    OVERLOADED: "overloaded",
    INCOMPLETE: "incomplete_generation",
    503: "overloaded",
}


def status_of(error: ApiError) -> int:
    """The status that TGI has for what went wrong: 422 for a value that is wrong, 424 for a step that failed.

    What is no value (a key, a path, a size, a server that loads) keeps HTTP's own.
    """
    return _BY_CODE.get(error.code or "", VALIDATION if error.status == 400 else error.status)


def body(error: ApiError) -> bytes:
    """{"error", "error_type"} as JSON. The type is what clients read: `validation`, `generation`, ..."""
    message = str(error)
    if isinstance(error, ContextLengthError):
        message = f"inputs must have less than {error.most} tokens. Given: {error.tokens}"
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 3] + "..."
    return json.dumps({"error": message, "error_type": _TYPES.get(status_of(error), "validation")}).encode()


@dataclass(frozen=True, slots=True)
class TgiDialect(Dialect):
    """A Dialect with statuses of its own. Streams end with their last token: there is no `[DONE]`."""

    def response(self, error: BaseException, names: Mapping[str, str] | None = None) -> Response:
        found = to_api_error(error, self.names if names is None else names)
        response = Dialect.response(self, found, names)
        response.status_code = status_of(found)
        return response


TGI = TgiDialect(body, lambda error: b"data: " + body(error) + b"\n\n", names=NAMES)
