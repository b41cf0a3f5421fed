"""A request's body: its bytes as a pydantic model, and the types that such models share."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Annotated, Any, Protocol, TypeVar

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from starlette.requests import Request

from octavo.errors import InvalidRequestError
from octavo.server.errors import ApiError
from octavo.server.openai.fields import SCOPE, check_unknown, json_type, misfit

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

LONG_TEXT = 20_000
"""Characters above which work goes to a thread: megabytes take seconds, and streams must not wait."""
TURN_S = 0.003
"""Sleep of a huge body's thread between calls that let nobody else run: the loop would wait at each read."""
_ALONE, _HUGE = ThreadPoolExecutor(1, "large-bodies"), ThreadPoolExecutor(1, "huge-texts")


async def off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call function, in a thread when the text is long, and one at a time when it is huge."""
    if size > 10 * LONG_TEXT:  # encoding it takes 150 bytes a character
        return await asyncio.get_running_loop().run_in_executor(_HUGE, function, *args)
    return await asyncio.to_thread(function, *args) if size > LONG_TEXT else function(*args)


async def alone(size: int, function: Callable[..., T], *args: Any) -> T:
    """off_loop() for what takes many times its size in memory meanwhile: one at a time."""
    if size > LONG_TEXT:
        run = copy_context().run  # what the function notes is this request's
        return await asyncio.get_running_loop().run_in_executor(_ALONE, run, _uncollected, function, *args)
    return function(*args)


def _uncollected(function: Callable[..., T], *args: Any) -> T:
    """Call function without the cyclic collector, which stops all threads to look at a million new lists."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return function(*args)
    finally:
        time.sleep(TURN_S)
        if collects:
            gc.enable()


async def read(request: Request, model: type[Model]) -> tuple[Model, int]:
    """(a request's body, its bytes).

    Raises:
        ApiError: it does not fit the model; the error names the field as the caller wrote it.
    """
    data = await request.body()
    SCOPE.set(request.scope)
    try:
        return await alone(len(data), parse, model, data), len(data)
    except InvalidRequestError as error:
        found = ApiError(400, str(error), param=error.param)
    raise found  # out there: what was caught keeps frames, and they keep the whole body


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """openapi_extra of an endpoint that reads its body by hand (see read)."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def integral(value: Any) -> Any:
    """8.0 is an integer, as in JSON Schema."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(integral)]


class Strict(BaseModel):
    """No coercion: "5" is no number. Unknown fields were refused before (see parse)."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ModelRequest(Protocol):
    """What every request that the model computes may say."""

    model: str | None
    priority: int
    cache_salt: str | None


def parse(model: type[Model], body: bytes) -> Model:
    """A request body as a model of this type.

    Raises:
        ApiError, InvalidRequestError: not JSON, not an object, or a field that is unknown, not
            supported, or of the wrong type; the error names it.
    """
    try:  # of many different names in a large body each would be looked for among those remembered
        value = pydantic_core.from_json(body, allow_inf_nan=False, cache_strings=len(body) <= LONG_TEXT)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if len(body) > 10 * LONG_TEXT:
        time.sleep(TURN_S)
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, not {json_type(value)}")
    fields: dict[str, Any] = {}
    more: dict[str, Any] = {}  # what fields of other names stand for
    for name, member in value.items():
        if member is not None and name in model.model_fields:  # null and absent are the same
            fields[name] = member
        elif member is not None:
            more |= check_unknown(name, value, model)
    fields |= more
    if isinstance(options := fields.get("stream_options"), dict):
        given = [(k, v) for k, v in options.items() if v is not None]
        fields["stream_options"] = dict(given[:16])  # it takes two: of more the first unknown one is named
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise misfit(error, fields) from None
