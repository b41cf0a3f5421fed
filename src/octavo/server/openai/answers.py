"""From a checked request to its response: the generation, then one JSON body, or chunks of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from octavo import __version__
from octavo.engine.admission import check_named
from octavo.errors import InvalidRequestError
from octavo.params import CompletionOutput, RequestMetrics, RequestOutput, SamplingParams
from octavo.server.engine import ServedEngine
from octavo.server.errors import OPENAI, ContextLengthError
from octavo.server.generation import Generation
from octavo.server.openai.body import ModelRequest, alone
from octavo.server.openai.logprobs import check_reported, reported
from octavo.server.openai.sampling import GenerationRequest
from octavo.server.sse import EventStream
from octavo.server.state import key_owner, state_of
from octavo.server.whole import Answer

FINGERPRINT = f"octavo-{__version__}"  # clients' types ask for one
MAX_SALT = 256
"""Characters of a cache_salt: the prefix cache keeps it as long as what was cached under it."""
URGENT = "priority must not be negative: the server takes that with --scheduling-policy priority"

dumps = json.JSONEncoder(separators=(",", ":"), default=list).encode
"""Compact JSON, of iterators too; ASCII: lone surrogates and line separators cannot break a stream."""


def dumps_apart(value: Any, lists: int = 2) -> str:
    """dumps(), the objects in lists, and in lists inside these, one by one: other threads run in between.
    An iterator makes its objects one by one, too: all at a time are megabytes."""
    if lists and type(value) is dict:
        return f"{{{','.join(f'{dumps(name)}:{dumps_apart(value[name], lists)}' for name in value)}}}"
    if lists and (isinstance(value, Iterator) or (type(value) is list and value and type(value[-1]) is dict)):
        return f"[{','.join(dumps_apart(item, lists - 1) for item in value)}]"  # (the first may be null)
    return dumps(value)


def new_id(prefix: str, joint: str = "-") -> str:
    """A request id, such as chatcmpl-1f0c..., unique in practice."""
    return f"{prefix}{joint}{secrets.token_hex(16)}"


def now() -> int:
    """Seconds since 1970, as OpenAI's `created`."""
    return int(time.time())


def make_generation(
    request: Request,
    body: ModelRequest,
    request_id: str,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    prompt_field: str,
    kind: type[Generation] = Generation,
) -> Generation:
    """Check the prompts and the token ids in params against the model, and bind them to the engine.

    Raises:
        InvalidRequestError, ApiError: a prompt is empty, too long, or holds ids that no token has.
    """
    state = state_of(request)
    engine = state.served(body.model)
    if params.truncate_prompt_tokens is not None:
        prompts = [prompt[-params.truncate_prompt_tokens :] for prompt in prompts]
    for prompt in prompts:
        check_prompt(prompt, engine, prompt_field, params.only_prompt)
    check_named(params, engine.tokenizer.vocab_size)
    check_count(len(prompts), params.n, engine.max_sequences, prompt_field)
    if params.logprobs is not None or params.prompt_logprobs is not None:
        check_reported(params, [len(prompt) for prompt in prompts], engine.max_model_len)
    if len(body.cache_salt or "") > MAX_SALT:
        raise InvalidRequestError(f"cache_salt takes at most {MAX_SALT} characters", "cache_salt")
    if -(2**31) < body.priority < 0 and not state.settings.takes_priority:
        raise InvalidRequestError(URGENT, "priority")
    owner = key_owner(request.scope)
    name = request_id if len(prompts) == 1 else request_id + "-{}"
    ask = partial(engine.request, priority=body.priority, cache_salt=state.cache_salt(body.cache_salt, owner))
    requests = [ask(prompt, params, name.format(index)) for index, prompt in enumerate(prompts)]
    if state.several_keys:  # they tell who asks: the engine is shared fairly
        requests = [replace(one, owner=owner) for one in requests]
    return kind(engine, state.metrics, request_id, requests, state.queue)


def check_prompt(prompt: Sequence[int], engine: ServedEngine, field: str, only_prompt: bool) -> None:
    """Raise if the model cannot take this prompt. only_prompt: no answer needs a place behind it."""
    if not prompt:
        raise InvalidRequestError(f"{field} is empty: at least one token is needed", field)
    most = engine.max_encoder_len or engine.max_model_len
    if len(prompt) > most - (not engine.max_encoder_len and not only_prompt):
        raise ContextLengthError(len(prompt), most, field)
    if max(prompt) >= (size := engine.tokenizer.vocab_size):
        raise InvalidRequestError(f"there is no token {max(prompt)}; the model has {size}", field)


def check_count(prompts: int, n: int, most: int, field: str, named: str = "n") -> None:
    """Raise if one request asks for more completions than the engine may hold at all.

    Args:
        field: where the prompts are. named: what the caller calls n.
    """
    if prompts * n > most:
        asked = f"{prompts} prompts x {named} {n}" if prompts > 1 else f"{named} {n}"
        text = f"{asked} is more than the {most} completions that are taken at once; send fewer"
        raise InvalidRequestError(text, named if n > 1 else field)


class Writer(Protocol):
    """How an endpoint writes what the engine gives.

    Attributes:
        objects: the `object` of an answer, and of a chunk.
    """

    objects: tuple[str, str]

    def members(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        """The members of the whole answer after id, object, created and model."""
        ...

    def chunk(self, prompt: int, output: RequestOutput, new: CompletionOutput, first: bool) -> Sequence[str]:
        """The JSON members of a chunk's choice after its index, of each chunk; none: nothing is worth one.

        Args:
            prompt: its index among the request's.
            new: what came of one of output's completions.
            first: it is the first that came.
        """
        ...


def respond(
    generation: Generation, body: GenerationRequest, writer: Writer, names: Mapping[str, str]
) -> Response:
    """The response that the request wants: a stream of chunks, or the whole answer.

    Args:
        names: this request's for the engine's fields, where they differ.
    """
    headers = {"x-request-id": generation.request_id}
    if body.stream:
        return EventStream(chunks(generation, body, writer), headers, OPENAI, names)
    return Answer(partial(_whole, generation, writer), headers, OPENAI, names)


async def _whole(generation: Generation, writer: Writer) -> bytes:
    outputs = await generation.final()
    drawn = sum(len(one.token_ids) for o in outputs for one in o.outputs)
    size = drawn + 50 * sum(reported(generation.params, sum(o.num_prompt_tokens for o in outputs), drawn))
    head = _head(generation, writer.objects[0])
    return await alone(size, lambda: dumps_apart(head | writer.members(outputs)).encode())


def _head(generation: Generation, kind: str) -> dict[str, Any]:
    named = {"model": generation.engine.served_model_name, "system_fingerprint": FINGERPRINT}
    return {"id": generation.request_id, "object": kind, "created": now(), **named}


@dataclass(slots=True)
class _PromptState:
    """Of one prompt's stream: its chunk head, token counts, and which choices began and ended."""

    head: str
    prompt_tokens: int
    cached: int
    generated: int = 0
    metrics: RequestMetrics | None = None
    begun: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)


async def chunks(
    generation: Generation, body: GenerationRequest, writer: Writer
) -> AsyncGenerator[bytes, None]:
    """Chunks as server-sent events: one event a choice with news, those of one step in one piece.

    The parts of a chunk that never change are formatted once. With usage, all chunks carry a `usage`
    member (null, or continuous: so far), and a last chunk without choices has the total.
    """
    prompts: dict[int, _PromptState] = {}
    head = _head(generation, writer.objects[1])
    include_usage, continuous = body.include_usage, body.continuous_usage
    tail = ',"usage":null' if include_usage else ""
    async with aclosing(generation.outputs()) as stream:
        async for prompt_index, output in stream:
            if (state := prompts.get(prompt_index)) is None:  # the first output of this prompt
                begin = _chunk_head(head if output.seed is None else head | {"seed": output.seed})
                state = _PromptState(begin, output.num_prompt_tokens, output.num_cached_tokens)
                prompts[prompt_index] = state
            state.metrics = output.metrics
            events: list[str] = []
            for new in output.outputs:
                index = new.index
                if index in state.ended:  # stopped by a stop string, while the engine goes on
                    continue
                state.generated += len(new.token_ids)
                # None where there is nothing to show yet: reasoning or a call that is incomplete.
                found = writer.chunk(prompt_index, output, new, index not in state.begun)
                if found:
                    state.begun.add(index)
                if new.finish_reason is not None:
                    state.ended.add(index)
                if continuous:
                    tail = f',"usage":{dumps(_usage(prompts))}'
                number = prompt_index * generation.params.n + index
                events += [f'{state.head}{{"index":{number},{one}}}]{tail}}}\n\n' for one in found]
            if events:
                yield "".join(events).encode()
    if include_usage:
        yield f'{_chunk_head(head)}],"usage":{dumps(_usage(prompts))}}}\n\n'.encode()


def _chunk_head(members: Mapping[str, Any]) -> str:
    """Up to the list of choices."""
    return f'data: {dumps(members)[:-1]},"choices":['


def more_members(prompt: Sequence[int], new: CompletionOutput, first: bool, token_ids: bool) -> str:
    """What vLLM adds to a chunk's choice: stop_reason at the end, and token ids where asked for."""
    more = f',"stop_reason":{dumps(new.stop_reason)}' if new.finish_reason is not None else ""
    if token_ids:
        more += f',"token_ids":{dumps(new.token_ids)}'
        if first:
            more += f',"prompt_token_ids":{dumps(prompt)}'
    return more


def usage(outputs: Iterable[RequestOutput]) -> dict[str, Any]:
    """OpenAI's usage object for the prompts of one request (final outputs)."""
    every = tuple(outputs)
    prompt = sum(output.num_prompt_tokens for output in every)
    completion = sum(len(item.token_ids) for output in every for item in output.outputs)
    cached = sum(output.num_cached_tokens for output in every)
    return usage_of(prompt, completion, cached, [output.metrics for output in every])


def usage_of(
    prompt: int, completion: int, cached: int, metrics: Iterable[RequestMetrics | None] = ()
) -> dict[str, Any]:
    """OpenAI's usage object. metrics: of its prompts; where nothing was drafted, nothing is said of it."""
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    for one in metrics:
        if one is not None and one.accepted_prediction_tokens + one.rejected_prediction_tokens:
            details = found.setdefault("completion_tokens_details", Counter())
            details["accepted_prediction_tokens"] += one.accepted_prediction_tokens
            details["rejected_prediction_tokens"] += one.rejected_prediction_tokens
    return found


def _usage(prompts: Mapping[int, _PromptState]) -> dict[str, Any]:
    states = prompts.values()
    return usage_of(
        sum(state.prompt_tokens for state in states),
        sum(state.generated for state in states),
        sum(state.cached for state in states),
        [state.metrics for state in states],
    )
