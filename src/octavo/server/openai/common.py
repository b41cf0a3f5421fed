"""What the OpenAI endpoints share: ids, prompt checks, usage, and the OpenAPI text of a body."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from octavo.errors import InvalidRequestError
from octavo.params import RequestOutput, SamplingParams
from octavo.server.engine import ServedEngine
from octavo.server.errors import ApiError
from octavo.server.generation import Generation
from octavo.server.openai.parse import parse
from octavo.server.openai.protocol import EmbeddingRequest, GenerationRequest
from octavo.server.state import ServerState, bearer_token

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Prompt = str | list[int]

LONG_TEXT = 20_000
"""Characters above which encoding goes to a thread: megabytes take seconds, and streams must not wait."""


MAX_SALT = 256
"""Characters of a cache_salt: the prefix cache keeps it as long as what was cached under it."""


def new_id(prefix: str) -> str:
    """A request id, such as chatcmpl-1f0c..., unique in practice."""
    return f"{prefix}-{secrets.token_hex(16)}"


async def off_loop(size: int, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call function, in a thread when the text is long."""
    if size > LONG_TEXT:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)


async def read(request: Request, model: type[Model]) -> tuple[Model, int]:
    """(a request's body, its bytes).

    Raises:
        ApiError: it does not fit the model; the error names the field as the caller wrote it.
    """
    data = await request.body()
    try:
        return await off_loop(len(data), parse, model, data), len(data)
    except InvalidRequestError as error:
        raise ApiError(400, str(error), param=error.param) from None


async def encode_prompts(
    engine: ServedEngine,
    prompts: Sequence[Prompt],
    add_special_tokens: bool,
    whole: bool = True,
    field: str = "prompt",
) -> list[list[int]]:
    """Token ids of each prompt; ids are taken as they are.

    Args:
        whole: False: only the prompts' last tokens are wanted, so they may be longer than the context.

    Raises:
        InvalidRequestError: a text is longer than any context's tokens.
    """
    encode = engine.tokenizer.encode
    for prompt in prompts:
        if whole and isinstance(prompt, str):
            check_text(prompt, engine, field)
    return [
        await off_loop(len(p), encode, p, add_special_tokens) if isinstance(p, str) else p for p in prompts
    ]


def check_text(text: str, engine: ServedEngine, field: str = "prompt") -> None:
    """Raise if no max_model_len tokens hold this text: that is cheaper than to encode it."""
    context = max(engine.max_model_len, engine.max_encoder_len)
    most = context * engine.tokenizer.longest_token
    if len(text) > most:
        raise InvalidRequestError(
            f"{field} has {len(text)} characters; the context of {context} tokens holds {most}",
            field,
        )


def make_generation(
    request: Request,
    state: ServerState,
    body: GenerationRequest | EmbeddingRequest,
    request_id: str,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    prompt_field: str,
) -> Generation:
    """Check the prompts and the token ids in params against the model, and bind them to the engine.

    Raises:
        InvalidRequestError, ApiError: a prompt is empty, too long, or holds ids that no token has.
    """
    engine = state.served(body.model)
    vocab_size = engine.tokenizer.vocab_size
    if params.truncate_prompt_tokens is not None:
        prompts = [prompt[-params.truncate_prompt_tokens :] for prompt in prompts]
    for prompt in prompts:
        check_prompt(prompt, engine, vocab_size, prompt_field, params.only_prompt)
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        highest = max(getattr(params, name) or (0,))
        if highest >= vocab_size:
            raise InvalidRequestError(f"{name} names token {highest}; the model has {vocab_size}", name)
    check_count(len(prompts), params.n, engine.max_sequences, prompt_field)
    if len(body.cache_salt or "") > MAX_SALT:
        raise InvalidRequestError(f"cache_salt takes at most {MAX_SALT} characters", "cache_salt")
    salt = state.cache_salt(body.cache_salt, bearer_token(request.scope["headers"]))
    return Generation(engine, state.metrics, request_id, prompts, params, body.priority, salt)


def check_prompt(
    prompt: Sequence[int], engine: ServedEngine, vocab_size: int, field: str, alone: bool
) -> None:
    """Raise if the model cannot take this prompt. alone: no answer needs a place behind it."""
    if not prompt:
        raise InvalidRequestError(f"{field} is empty: at least one token is needed", field)
    if engine.max_encoder_len and len(prompt) > engine.max_encoder_len:
        raise ApiError(
            400,
            f"the prompt has {len(prompt)} tokens; the encoder reads at most {engine.max_encoder_len}",
            param=field,
            code="context_length_exceeded",
        )
    if not engine.max_encoder_len and len(prompt) > engine.max_model_len - (not alone):
        raise ApiError(
            400,
            f"the prompt has {len(prompt)} tokens; the context of {engine.max_model_len} must hold it"
            + ("" if alone else " and at least one more"),
            param=field,
            code="context_length_exceeded",
        )
    if max(prompt) >= vocab_size:
        raise InvalidRequestError(f"there is no token {max(prompt)}; the model has {vocab_size}", field)


def check_count(prompts: int, n: int, most: int, field: str, named: str = "n") -> None:
    """Raise if one request asks for more completions than the engine may hold at all.

    Args:
        field: where the prompts are; named: what the caller calls n.
    """
    if prompts * n > most:
        asked = f"{prompts} prompts x {named} {n}" if prompts > 1 else f"{named} {n}"
        raise InvalidRequestError(
            f"{asked} is more than the {most} completions that are taken at once; send fewer",
            named if n > 1 else field,
        )


def usage(outputs: Iterable[RequestOutput]) -> dict[str, Any]:
    """OpenAI's usage object for the prompts of one request (final outputs)."""
    prompt = completion = cached = 0
    for output in outputs:
        prompt += output.num_prompt_tokens
        completion += sum(len(item.token_ids) for item in output.outputs)
        cached += output.num_cached_tokens
    return usage_of(prompt, completion, cached)


def usage_of(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


dumps = json.JSONEncoder(separators=(",", ":")).encode
"""Compact JSON; ASCII, so that lone surrogates and line separators cannot break a stream."""


def now() -> int:
    """Seconds since 1970, as OpenAI's `created`."""
    return int(time.time())


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """openapi_extra of an endpoint that reads its body by hand (see read)."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
