"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.params import RequestOutput
from octavo.pooling import PoolingParams
from octavo.server.apis import Rules
from octavo.server.errors import OPENAI
from octavo.server.generation import Generation
from octavo.server.many_prompts import ManyPrompts
from octavo.server.openai.answers import check_count, dumps_apart, make_generation, new_id
from octavo.server.openai.body import BodySchema, Int, Strict, off_loop, read
from octavo.server.openai.fields import noted
from octavo.server.openai.prompts import Prompts, encode_prompts
from octavo.server.state import state_of
from octavo.server.whole import Answer

router = APIRouter()
rules = {"/v1/embeddings": Rules(batched=True)}


class EmbeddingRequest(Strict):
    """POST /v1/embeddings. pooling, normalize: see octavo.pooling.PoolingParams.

    truncate_prompt_tokens: -1: as many of the last tokens as the model takes.
    """

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Int | None = None
    pooling: str = "last"
    normalize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: Int | None = None
    priority: Int = 0
    cache_salt: str | None = None
    user: Annotated[str | None, noted("user")] = None


@router.post("/v1/embeddings", openapi_extra=BodySchema(EmbeddingRequest))
async def embeddings(request: Request) -> Response:
    """Each input as a vector: the model's last hidden states, pooled ("last" or "mean") and normalized."""
    state = state_of(request)
    body, _ = await read(request, EmbeddingRequest)
    engine = state.served(body.model)
    wanted = PoolingParams(body.pooling, body.normalize, body.dimensions)
    wanted.check(engine.embedding_size)
    kept = body.truncate_prompt_tokens
    if kept == -1:
        kept = engine.max_encoder_len or engine.max_model_len
    params = wanted.sampling(truncate_prompt_tokens=kept)
    check_count(len(body.input), 1, engine.max_sequences, "input")
    prompts = await encode_prompts(engine, body.input, body.add_special_tokens, kept is None, "input")
    name = new_id("embd")
    generation = make_generation(request, body, name, prompts, params, "input", ManyPrompts)
    as_text = body.encoding_format == "base64"
    return Answer(
        lambda: _answer(generation, wanted, as_text), {"x-request-id": name}, OPENAI, {"prompt": "input"}
    )


async def _answer(generation: Generation, wanted: PoolingParams, as_text: bool) -> bytes:
    outputs = await generation.final()
    size = sum(len(output.embedding or ()) for output in outputs)
    return await off_loop(size, _written, generation, outputs, wanted, as_text)


def _written(
    generation: Generation, outputs: Sequence[RequestOutput], wanted: PoolingParams, as_text: bool
) -> bytes:
    vectors = (wanted.finish(output.embedding or ()) for output in outputs)
    data = (  # one by one: as Python's numbers a vector takes four times its size
        {"object": "embedding", "index": index, "embedding": to_base64(vector) if as_text else vector}
        for index, vector in enumerate(vectors)
    )
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    model = generation.engine.served_model_name
    return dumps_apart({"object": "list", "data": data, "model": model, "usage": usage}).encode()


def to_base64(vector: Sequence[float]) -> str:
    """Little-endian float32 in base64."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
