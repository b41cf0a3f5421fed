"""A request's body: its bytes as a pydantic model, and the types that such models share."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Annotated, Any, Protocol, TypeVar

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from starlette.requests import Request

from octavo.errors import InvalidRequestError, OctavoError
from octavo.server.errors import ApiError
from octavo.server.openai.fields import SCOPE, check_unknown, json_type, misfit

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

LONG_TEXT = 20_000
"""Characters above which work goes to a thread: megabytes take seconds, and streams must not wait."""
_LOOP = ContextVar[asyncio.AbstractEventLoop]("_LOOP")  # in alone()'s thread: the caller's
_ALONE, _HUGE = ThreadPoolExecutor(1, "large-bodies"), ThreadPoolExecutor(1, "huge-texts")


async def off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call function, in a thread when the text is long, and one at a time when it is huge."""
    if size > 10 * LONG_TEXT:  # encoding it takes 150 bytes a character
        return await asyncio.get_running_loop().run_in_executor(_HUGE, copy_context().run, function, *args)
    return await asyncio.to_thread(function, *args) if size > LONG_TEXT else function(*args)


async def alone(size: int, function: Callable[..., T], *args: Any) -> T:
    """off_loop() for what takes many times its size in memory meanwhile: one at a time."""
    if size > LONG_TEXT:
        loop, run = asyncio.get_running_loop(), copy_context().run  # what function notes is this request's
        return await loop.run_in_executor(_ALONE, run, _uncollected, loop, function, *args)
    return function(*args)


def _uncollected(loop: asyncio.AbstractEventLoop, function: Callable[..., T], *args: Any) -> T:
    """Call function without the cyclic collector, which stops all threads to look at a million new lists."""
    _LOOP.set(loop)
    collects = gc.isenabled()
    gc.disable()
    try:
        return function(*args)
    except OctavoError as error:
        refusal = error.with_traceback(None)  # its frames hold the body's objects, which end here
        refusal.__context__ = None
    finally:
        let_turn()
        if collects:
            gc.enable()
    raise refusal


def let_turn() -> None:
    """Wait, between long calls in alone()'s thread, until the loop has gone round: they let no other run."""
    if (loop := _LOOP.get(None)) and not loop.is_closed():
        with suppress(TimeoutError, CancelledError, RuntimeError):  # it ends
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(1.0)


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


class BodySchema(dict[str, Any]):
    """openapi_extra of an endpoint that reads its body by hand (see read); empty until fill(): Pydantic takes
    25 ms to describe all bodies, which no server should start with."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model

    def fill(self) -> dict[str, Any]:
        """Describe the body; the models inside it, by name, which are among the document's components."""
        schema = self.model.model_json_schema(ref_template="#/components/schemas/{model}")
        inside: dict[str, Any] = schema.pop("$defs", {})
        self["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        return inside


def integral(value: Any) -> Any:
    """8.0 is an integer, as in JSON Schema."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(integral)]


class Strict(BaseModel):
    """No coercion: "5" is no number. Unknown fields were refused before (see parse). First use makes it."""

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)


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
        why = "nested too deeply" if "recursion limit" in str(error) else f"not valid JSON: {error}"
        raise ApiError(400, f"the body is {why}", code="invalid_json") from None
    let_turn()
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, not {json_type(value)}")
    given = [name for name, member in value.items() if member is not None]  # null and absent are the same
    fields = {name: value[name] for name in given if name in model.model_fields}
    for name in [each for each in given if each not in model.model_fields]:
        fields |= check_unknown(name, value, model)  # it may stand for fields of other names
    if isinstance(options := fields.get("stream_options"), dict):
        wanted = [(k, v) for k, v in options.items() if v is not None]
        fields["stream_options"] = dict(wanted[:16])  # it takes two: of more the first unknown one is named
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise misfit(error, fields) from None
