"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.admission import check_named
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import MAX_N, CompletionOutput, RequestOutput, SamplingParams
from octavo.server.apis import Rules
from octavo.server.engine import ServedEngine
from octavo.server.many_prompts import ManyPrompts
from octavo.server.openai.answers import (
    check_count,
    dumps,
    make_generation,
    more_members,
    new_id,
    respond,
    usage,
)
from octavo.server.openai.body import BodySchema, Int, off_loop, read
from octavo.server.openai.completion_logprobs import CompletionLogprobs, join
from octavo.server.openai.logprobs import prompt_logprobs
from octavo.server.openai.prompts import Prompt, Prompts, encode_prompts
from octavo.server.openai.sampling import GenerationRequest
from octavo.server.openai.strictness import held
from octavo.server.state import state_of

router = APIRouter()
rules = {"/v1/completions": Rules(batched=True, queued=True)}


class CompletionRequest(GenerationRequest, defer_build=False):
    """POST /v1/completions. Without max_tokens 16 are generated."""

    prompt: Prompts
    echo: bool = False
    add_special_tokens: bool = True
    logprobs: Int | None = None
    best_of: Int | None = None

    def sampling_params(self) -> SamplingParams:
        """SamplingParams of this request.

        Raises:
            InvalidRequestError: a value is out of range, or two contradict each other.
        """
        if self.echo and self.logprobs is not None and self.stream and self.n > 1:
            raise InvalidRequestError("echo with logprobs in a stream needs n: 1", "echo")
        count = self.best_of
        if count is not None and count < self.n:
            raise InvalidRequestError(f"best_of {count} is below n {self.n}", "best_of")
        if count is not None and count > self.n and self.stream:
            raise InvalidRequestError("best_of above n needs stream: false", "best_of")
        if self.max_tokens == 0 and self.echo and self.stream:
            raise InvalidRequestError("max_tokens: 0 needs stream: false", "max_tokens")
        limit = 16 if self.max_tokens is None else self.max_tokens
        if limit == 0 and self.echo:  # nothing but the prompt is wanted
            limit = 1
        params = self.params(limit, self.logprobs, self.logprobs if self.echo else None)
        if self.use_beam_search:
            return self.searched(params, count, "n" if count is None else "best_of")
        params = self.searched(params)
        if count is not None and count > self.n:
            if count > MAX_N:
                raise InvalidRequestError(f"best_of must be at most {MAX_N}, not {count}", "best_of")
            # Which is best is told by the logprobs of all.
            params = params.replace(n=count, logprobs=self.logprobs or 0)
        return params


@router.post("/v1/completions", openapi_extra=BodySchema(CompletionRequest))
async def completions(request: Request) -> Response:
    """Continue one prompt, or each of several: choice i * n + k is the k-th of prompt i.

    `seed` is the one that was used; with several prompts each choice has its own.
    """
    state = state_of(request)
    body, _ = await read(request, CompletionRequest)
    engine = state.served(body.model)
    if body.echo and engine.max_encoder_len:
        raise UnsupportedError("echo: the prompt is the encoder's input, no part of what is written", "echo")
    params = held(body, state.settings, body.sampling_params())
    given: list[Prompt] = body.prompt
    if len(given) > state.settings.max_prompts:
        raise InvalidRequestError(
            f"prompt holds {len(given)} prompts; at most {state.settings.max_prompts} are taken", "prompt"
        )
    named = "n" if body.best_of is None else "best_of"
    check_count(len(given), params.n, engine.max_sequences, "prompt", named)
    check_named(params, engine.tokenizer.vocab_size)
    whole = params.truncate_prompt_tokens is None
    prompts = await encode_prompts(engine, given, body.add_special_tokens, whole)
    request_id = new_id("cmpl")
    generation = make_generation(request, body, request_id, prompts, params, "prompt", ManyPrompts)
    shown = given if whole else [one.prompt_token_ids for one in generation.requests]
    texts = [""] * len(given)
    if body.echo:
        texts = await off_loop(sum(map(len, shown)), _echo, engine, shown)
    names = {"structured_outputs": body.shape[0], "beam_width": named}
    return respond(generation, body, _Writer(engine, body, texts), names)


def _read(output: RequestOutput) -> list[int]:
    """The prompt as it was sent: what an encoder has read, where the model has one."""
    return output.encoder_prompt_token_ids or output.prompt_token_ids


def _echo(engine: ServedEngine, prompts: Sequence[Prompt]) -> list[str]:
    """The prompts as text."""
    return [
        prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt, skip_special_tokens=False)
        for prompt in prompts
    ]


def _nothing(index: int) -> CompletionOutput:
    return CompletionOutput(index, logprobs=[], finish_reason="length")


def _chosen(body: CompletionRequest, output: RequestOutput) -> list[CompletionOutput]:
    """With best_of the n likeliest completions per token, best first; otherwise all."""
    if len(output.outputs) <= body.n:
        return output.outputs

    def per_token(completion: CompletionOutput) -> float:
        return -(completion.cumulative_logprob or 0.0) / max(len(completion.token_ids), 1)

    return sorted(output.outputs, key=per_token)[: body.n]


class _Writer:
    """Writes completions (see answers.Writer).

    Args:
        texts: the prompts where they are echoed, by their index.
    """

    objects = ("text_completion", "text_completion")

    def __init__(self, engine: ServedEngine, body: CompletionRequest, texts: Sequence[str]) -> None:
        self._engine, self._body, self._texts = engine, body, texts
        self._open: dict[tuple[int, int], CompletionLogprobs] = {}

    def members(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        body = self._body
        if body.max_tokens == 0:  # one token had to be generated, and was not asked for
            outputs = [
                replace(output, outputs=[_nothing(each.index) for each in output.outputs])
                for output in outputs
            ]
        choices: list[dict[str, Any]] = []
        for prompt, output in enumerate(outputs):
            for completion in _chosen(body, output):
                choices.append({"index": len(choices), **self._choice(prompt, output, completion)})
                if len(outputs) > 1:
                    choices[-1]["seed"] = output.seed
        answer: dict[str, Any] = {"choices": choices, "usage": usage(outputs)}
        if len(outputs) == 1:
            answer["seed"] = outputs[0].seed
        return answer

    def _choice(self, prompt: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        body = self._body
        wanted = completion.logprobs is not None and body.logprobs is not None
        choice: dict[str, Any] = {
            "text": self._texts[prompt] + completion.text,
            "logprobs": self._logprobs(prompt, output, completion, True) if wanted else None,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if body.return_token_ids:
            choice |= {"token_ids": completion.token_ids, "prompt_token_ids": _read(output)}
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output)
        return choice

    def chunk(self, prompt: int, output: RequestOutput, new: CompletionOutput, first: bool) -> Sequence[str]:
        body = self._body
        wanted = body.logprobs is not None or body.return_token_ids or body.continuous_usage
        text = self._texts[prompt] + new.text if first else new.text
        if not (text or new.finish_reason or (wanted and new.token_ids)):
            return ()
        logprobs = dumps(self._logprobs(prompt, output, new, first)) if new.logprobs is not None else "null"
        more = more_members(_read(output), new, first, body.return_token_ids)
        reason = dumps(new.finish_reason)
        return (f'"text":{dumps(text)},"logprobs":{logprobs},"finish_reason":{reason}{more}',)

    def _logprobs(
        self, prompt: int, output: RequestOutput, new: CompletionOutput, first: bool
    ) -> dict[str, Any]:
        """The lists for what is new, behind the echoed prompt's where it is the first."""
        body, tokenizer = self._body, self._engine.tokenizer
        writer = self._open.get((prompt, new.index))
        if writer is None:
            writer = CompletionLogprobs(tokenizer, body.logprobs or 0, body.skip_special_tokens)
            self._open[prompt, new.index] = writer
        ids = output.prompt_token_ids
        echoed = None
        if first and body.echo:
            echoed = writer.echo(ids, output.prompt_logprobs or [None] * len(ids), self._texts[prompt])
        added = writer.add(new.token_ids, new.logprobs or [])
        return added if echoed is None else join(echoed, added)
