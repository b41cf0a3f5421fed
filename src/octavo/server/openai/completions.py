"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import CompletionOutput, RequestOutput
from octavo.server.engine import ServedEngine
from octavo.server.generation import Generation
from octavo.server.limits import Rules
from octavo.server.openai.common import (
    Prompt,
    body_schema,
    check_count,
    dumps,
    encode_prompts,
    make_generation,
    new_id,
    now,
    read,
    usage,
)
from octavo.server.openai.logprobs import CompletionLogprobs, join, prompt_logprobs
from octavo.server.openai.protocol import CompletionRequest
from octavo.server.openai.stream import more_members, respond
from octavo.server.state import state_of

router = APIRouter()
rules = {"/v1/completions": Rules(batched=True)}


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def completions(request: Request) -> Response:
    """Continue one prompt, or each of several: choice i * n + k is the k-th of prompt i.

    `seed` is the one that was used; with several prompts each choice has its own.
    """
    state = state_of(request)
    body, _ = await read(request, CompletionRequest)
    engine = state.served(body.model)
    if body.echo and engine.max_encoder_len:
        raise UnsupportedError("echo: the prompt is the encoder's input, no part of what is written", "echo")
    params = body.sampling_params()
    given: list[Prompt] = body.prompt
    if len(given) > state.settings.max_prompts:
        raise InvalidRequestError(
            f"prompt holds {len(given)} prompts; at most {state.settings.max_prompts} are taken", "prompt"
        )
    named = "n" if body.best_of is None else "best_of"
    check_count(len(given), params.n, engine.max_sequences, "prompt", named)
    whole = params.truncate_prompt_tokens is None
    prompts = await encode_prompts(engine, given, body.add_special_tokens, whole)
    request_id = new_id("cmpl")
    generation = make_generation(request, state, body, request_id, prompts, params, "prompt")
    texts = _echo(engine, given if whole else generation.prompts) if body.echo else [""] * len(given)
    names = {"structured_outputs": body.structured_field, "beam_width": named}
    return respond(
        generation,
        body,
        "text_completion",
        lambda: _TextFields(engine, body, texts),
        lambda: _answer(generation, body, texts),
        names,
    )


def _read(output: RequestOutput) -> list[int]:
    """The prompt as it was sent: what an encoder has read, where the model has one."""
    return output.encoder_prompt_token_ids or output.prompt_token_ids


def _echo(engine: ServedEngine, prompts: Sequence[Prompt]) -> list[str]:
    """The prompts as text."""
    return [
        prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt, skip_special_tokens=False)
        for prompt in prompts
    ]


def _logprobs(engine: ServedEngine, body: CompletionRequest) -> CompletionLogprobs:
    return CompletionLogprobs(engine.tokenizer, body.logprobs or 0, body.skip_special_tokens)


async def _answer(generation: Generation, body: CompletionRequest, texts: Sequence[str]) -> bytes:
    outputs = await generation.final()
    if body.max_tokens == 0:  # one token had to be generated, and was not asked for
        outputs = [replace(output, outputs=[_nothing(c.index) for c in output.outputs]) for output in outputs]
    choices: list[dict[str, Any]] = []
    for text, output in zip(texts, outputs, strict=True):
        for completion in _chosen(body, output):
            choice = _choice(generation.engine, body, text, output, completion)
            choices.append({"index": len(choices), **choice})
            if len(outputs) > 1:
                choices[-1]["seed"] = output.seed
    answer: dict[str, Any] = {
        "id": generation.request_id,
        "object": "text_completion",
        "created": now(),
        "model": generation.engine.served_model_name,
        "choices": choices,
        "usage": usage(outputs),
    }
    if len(outputs) == 1:
        answer["seed"] = outputs[0].seed
    return dumps(answer).encode()


def _nothing(index: int) -> CompletionOutput:
    return CompletionOutput(index, logprobs=[], finish_reason="length")


def _chosen(body: CompletionRequest, output: RequestOutput) -> list[CompletionOutput]:
    """With best_of the n likeliest completions per token, best first; otherwise all."""
    if len(output.outputs) <= body.n:
        return output.outputs

    def per_token(completion: CompletionOutput) -> float:
        return -(completion.cumulative_logprob or 0.0) / max(len(completion.token_ids), 1)

    return sorted(output.outputs, key=per_token)[: body.n]


def _choice(
    engine: ServedEngine,
    body: CompletionRequest,
    prefix: str,
    output: RequestOutput,
    completion: CompletionOutput,
) -> dict[str, Any]:
    logprobs = None
    if completion.logprobs is not None and body.logprobs is not None:
        writer = _logprobs(engine, body)
        logprobs = _echoed(writer, output, prefix) if body.echo else None
        answer = writer.add(completion.token_ids, completion.logprobs)
        logprobs = answer if logprobs is None else join(logprobs, answer)
    choice: dict[str, Any] = {
        "text": prefix + completion.text,
        "logprobs": logprobs,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if body.return_token_ids:
        choice |= {"token_ids": completion.token_ids, "prompt_token_ids": _read(output)}
    if body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(output)
    return choice


def _echoed(writer: CompletionLogprobs, output: RequestOutput, text: str) -> dict[str, Any]:
    known = output.prompt_logprobs or [None] * len(output.prompt_token_ids)
    return writer.echo(output.prompt_token_ids, known, text)


class _TextFields:
    """The members of a completion chunk's choice."""

    def __init__(self, engine: ServedEngine, body: CompletionRequest, texts: Sequence[str]) -> None:
        self._engine, self._body, self._texts = engine, body, texts
        self._logprobs: dict[tuple[int, int], CompletionLogprobs] = {}

    def __call__(self, prompt: int, output: RequestOutput, new: CompletionOutput, first: bool) -> str | None:
        body = self._body
        wanted = body.logprobs is not None or body.return_token_ids or body.continuous_usage
        text = self._texts[prompt] + new.text if first else new.text
        if not (text or new.finish_reason or (wanted and new.token_ids)):
            return None
        logprobs = "null"
        if new.logprobs is not None:
            key = (prompt, new.index)
            writer = self._logprobs.setdefault(key, _logprobs(self._engine, body))
            lists = _echoed(writer, output, self._texts[prompt]) if first and body.echo else None
            added = writer.add(new.token_ids, new.logprobs)
            logprobs = dumps(added if lists is None else join(lists, added))
        more = more_members(_read(output), new, first, body.return_token_ids)
        return f'"text":{dumps(text)},"logprobs":{logprobs},"finish_reason":{dumps(new.finish_reason)}{more}'
