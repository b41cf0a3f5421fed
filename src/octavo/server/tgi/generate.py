"""POST /generate, /generate_stream and /, as TGI has them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.checks import need
from octavo.errors import InvalidRequestError
from octavo.params import RequestOutput
from octavo.server.apis import Rules
from octavo.server.engine import ServedEngine
from octavo.server.generation import Generation
from octavo.server.openai.answers import check_count, dumps, dumps_apart, make_generation, new_id
from octavo.server.openai.body import BodySchema, alone, read
from octavo.server.openai.logprobs import reported
from octavo.server.openai.prompts import encode_prompts
from octavo.server.sse import EventStream
from octavo.server.state import state_of
from octavo.server.tgi.errors import NAMES, TGI
from octavo.server.tgi.info import longest_input
from octavo.server.tgi.protocol import GenerateBody, GenerateParameters, parameters
from octavo.server.tgi.writing import TokenWriter, ending, likeliest_first, prefill, sequence, times
from octavo.server.whole import Answer

router = APIRouter()
rules = {
    "/": Rules(keyed=False, queued=True),  # without a key it is asked by GET alone
    "/invocations": Rules(queued=True),
    "/generate": Rules(queued=True),
    "/generate_stream": Rules(queued=True),
}
SCHEMA = BodySchema(GenerateBody)


@router.post("/generate", openapi_extra=SCHEMA)
async def generate(request: Request) -> Response:
    """Go on with a text."""
    body, size = await read(request, GenerateBody)
    if body.stream:
        raise InvalidRequestError("stream: /generate answers at once; ask /generate_stream, or /", "stream")
    return await _respond(request, body, size, streamed=False)


@router.post("/generate_stream", openapi_extra=SCHEMA)
async def generate_stream(request: Request) -> Response:
    """Go on with a text, token by token."""
    body, size = await read(request, GenerateBody)
    return await _respond(request, body, size, streamed=True)


@router.post("/", openapi_extra=SCHEMA)
@router.post("/invocations", openapi_extra=SCHEMA)
async def compatible(request: Request) -> Response:
    """What the hub's own clients ask: `stream` says which; a whole answer is the one of a list.

    The text of the prompt is part of the answer, unless return_full_text is false or an encoder reads it.
    """
    body, size = await read(request, GenerateBody)
    return await _respond(request, body, size, streamed=body.stream, full_text=True, listed=True)


async def _respond(
    request: Request,
    body: GenerateBody,
    size: int,
    streamed: bool,
    full_text: bool = False,
    listed: bool = False,
) -> Response:
    """
    Args:
        full_text: whether the prompt stands before the answer where the request does not say.

    Raises:
        InvalidRequestError, ApiError: something in the request cannot be served.
    """
    start = time.monotonic()
    given = await alone(size, parameters, body.parameters)
    generation = await _generation(request, body, given, streamed)
    engine = generation.engine
    full_text = full_text and not engine.max_encoder_len  # such an answer goes on from no prompt
    if given.return_full_text is not None:
        full_text = given.return_full_text
    asked = _Asked(generation, given, body.inputs if full_text else "", start)
    headers = {
        "x-request-id": generation.request_id,
        "x-compute-type": "gpu" if engine.device_memory else "cpu",
        "x-compute-characters": str(len(body.inputs)),
    }
    names = {**NAMES, "logprobs": "top_n_tokens" if given.top_n_tokens else "details"}
    if streamed:
        return EventStream(asked.events(), headers, TGI, names)
    return _TimedAnswer(asked, listed, headers, names)


async def _generation(
    request: Request, body: GenerateBody, given: GenerateParameters, streamed: bool
) -> Generation:
    state = state_of(request)
    engine = state.served(body.model)
    if not body.inputs:
        raise InvalidRequestError("inputs cannot be empty", "inputs")
    most = longest_input(engine, state.settings)
    kept = given.truncate or 0
    need(kept <= most, f"must be at most {most}, which a prompt may have, not {kept}", "truncate")
    params = given.sampling_params(streamed)
    check_count(1, params.n, engine.max_sequences, "inputs", "best_of")
    whole = params.truncate_prompt_tokens is None
    (prompt,) = await encode_prompts(engine, [body.inputs], body.add_special_tokens, whole, "inputs")
    _check_total(engine, given, len(prompt))
    return make_generation(request, body, new_id("tgi"), [prompt], params, "inputs")


def _check_total(engine: ServedEngine, given: GenerateParameters, length: int) -> None:
    """Raise if the prompt and all tokens that are asked for do not fit into the context together."""
    read = min(length, given.truncate or length)
    wanted, most = given.max_new_tokens, engine.max_model_len
    taken = 0 if engine.max_encoder_len else read
    if wanted is not None and taken < most < taken + wanted:
        raise InvalidRequestError(
            f"max_new_tokens: inputs tokens + max_new_tokens must be <= {most}. "
            f"Given: {taken} inputs tokens and {wanted} max_new_tokens",
            "max_new_tokens",
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, as its answer needs it.

    Attributes:
        before: what stands before the generated text.
        start: when it was there, in seconds of time.monotonic().
    """

    generation: Generation
    given: GenerateParameters
    before: str
    start: float

    def writer(self, output: RequestOutput) -> TokenWriter:
        return TokenWriter(self.generation.engine.tokenizer, self.prompt(output), self.top)

    def prompt(self, output: RequestOutput) -> list[int]:
        """What the text goes on from: with an encoder, nothing."""
        return [] if self.generation.engine.max_encoder_len else output.prompt_token_ids

    def seed(self, output: RequestOutput) -> int | None:
        return output.seed if self.given.drawn else None

    @property
    def top(self) -> int:
        return self.given.top_n_tokens or 0

    def members(self, output: RequestOutput) -> dict[str, Any]:
        """The whole answer."""
        first, *others = likeliest_first(output.outputs)
        answer: dict[str, Any] = {"generated_text": self.before + first.text}
        if not self.given.scored:
            return answer
        tokenizer, seed = self.generation.engine.tokenizer, self.seed(output)
        read = prefill(tokenizer, output)
        found = [
            sequence(tokenizer, each, self.prompt(output), read, seed, self.top) for each in (first, *others)
        ]
        details = found[0]
        if others:
            details["best_of_sequences"] = [
                {"generated_text": self.before + each.text, **of}
                for each, of in zip(others, found[1:], strict=True)
            ]
        return {**answer, "details": details}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """An event for each token; the last one has the whole text."""
        writer: TokenWriter | None = None
        text, index = "", 0
        async with aclosing(self.generation.outputs()) as stream:
            async for _, output in stream:
                writer = writer or self.writer(output)
                (new,) = output.outputs
                text += new.text
                whole = text if new.finished else None
                written = writer.add(new.token_ids, new.logprobs or [], whole)
                if new.finished and not written:  # it ended without one
                    written = [({"id": 0, "text": "", "logprob": 0.0, "special": True}, [])]
                events: list[bytes] = []
                for token, likeliest in written:
                    index += 1
                    last = new.finished and token is written[-1][0]
                    event: dict[str, Any] = {"index": index, "token": token}
                    if likeliest:
                        event["top_tokens"] = likeliest
                    event["generated_text"] = self.before + text if last else None
                    details = ending(new, index, self.seed(output)) if last and self.given.details else None
                    if details is not None:
                        details["input_length"] = output.num_prompt_tokens
                    events.append(f"data: {dumps(event | {'details': details})}\n\n".encode())
                if events:
                    yield b"".join(events)


class _TimedAnswer(Answer):
    """The whole answer, whose headers say how long it took."""

    def __init__(self, asked: _Asked, listed: bool, headers: dict[str, str], names: dict[str, str]) -> None:
        super().__init__(self._made, headers, TGI, names)
        self._asked, self._listed = asked, listed

    async def _made(self) -> bytes:
        asked = self._asked
        (output,) = await asked.generation.final()
        drawn = sum(len(one.token_ids) for one in output.outputs)
        size = drawn + 50 * sum(reported(asked.generation.params, output.num_prompt_tokens, drawn))
        written = await alone(size, lambda: dumps_apart(asked.members(output), 3))
        generated = len(likeliest_first(output.outputs)[0].token_ids)
        self._extra.update(times(asked.start, time.monotonic(), output, generated))
        return f"[{written}]".encode() if self._listed else written.encode()
