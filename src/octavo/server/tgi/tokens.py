"""TGI's POST /tokenize, which is told from vLLM's by its `inputs`, and /chat_tokenize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.server.claims import Claim
from octavo.server.engine import ServedTokenizer
from octavo.server.openai.answers import dumps
from octavo.server.openai.body import BodySchema, alone, off_loop, read
from octavo.server.openai.chat import ChatRequest, render
from octavo.server.openai.prompts import check_text
from octavo.server.openai.reading import Readers
from octavo.server.state import state_of
from octavo.server.tgi.errors import TGI
from octavo.server.tgi.protocol import GenerateBody, parameters

router = APIRouter()


async def tokenize(request: Request) -> Response:
    """A list of {"id", "text", "start", "stop"}: a text's tokens, and which of its characters they are."""
    body, size = await read(request, GenerateBody)
    await alone(size, parameters, body.parameters)
    engine = state_of(request).served(body.model)
    if not body.inputs:
        raise InvalidRequestError("inputs cannot be empty", "inputs")
    check_text(body.inputs, engine, "inputs")
    ids = await off_loop(size, engine.tokenizer.encode, body.inputs, body.add_special_tokens)
    written = await alone(size, lambda: dumps(located(engine.tokenizer, ids, body.inputs)))
    return Response(written, media_type="application/json")


claims = {"/tokenize": Claim("inputs", tokenize, TGI)}


@router.post("/chat_tokenize", openapi_extra=BodySchema(ChatRequest))
async def chat_tokenize(request: Request) -> Response:
    """A conversation under the chat template, as text and as its tokens."""
    body, size = await read(request, ChatRequest)
    state = state_of(request)
    engine = state.served(body.model)
    ids = await render(engine, body, size, Readers.of(engine, state.settings, body).use.given)

    def write() -> str:
        text = engine.tokenizer.decode(ids, skip_special_tokens=False)
        return dumps({"tokenize_response": located(engine.tokenizer, ids, text), "templated_text": text})

    return Response(await alone(size, write), media_type="application/json")


def located(tokenizer: ServedTokenizer, ids: Sequence[int], text: str) -> list[dict[str, Any]]:
    """Each token with the characters of the text that it is, or of which it is a part.

    A token that is not in the text, such as one that the encoding has put before it, has none. Where the
    encoding changes texts (Unicode's normal forms), what follows has none either.
    """
    data = text.encode("utf-8", "surrogatepass")
    begins = [at for at, byte in enumerate(data) if byte & 0xC0 != 0x80] + [len(data)]
    character, at = 0, 0
    found: list[dict[str, Any]] = []
    for token_id in ids:
        piece = tokenizer.token_bytes(token_id)
        if not data.startswith(piece, at) and at == 0:
            piece = piece.removeprefix(b" ")  # of SentencePiece's own
        start = stop = character
        if piece and data.startswith(piece, at):
            at += len(piece)
            while begins[character] < at and begins[character + 1] <= at:
                character += 1
            stop = character + (begins[character] < at)
        found.append({"id": token_id, "text": text[start:stop], "start": start, "stop": stop})
    return found
