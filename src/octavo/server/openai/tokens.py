"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequestError
from octavo.server.claims import claimed
from octavo.server.engine import ServedTokenizer
from octavo.server.openai.answers import dumps
from octavo.server.openai.body import BodySchema, Strict, alone, off_loop, read
from octavo.server.openai.chat import ChatRequest, render
from octavo.server.openai.prompts import MAX_IDS, check_text
from octavo.server.openai.shapes import Ids, Messages, Variables, limited
from octavo.server.state import state_of

router = APIRouter()

SLICE = 10_000
"""Ids or texts of tokens that are written in one call, a millisecond."""


class TokenizeRequest(Strict):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Variables = Field(default={})
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[Ids, limited(MAX_IDS, "ids")]


@router.post("/tokenize", openapi_extra=BodySchema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Token ids of a text, or of a conversation under the chat template."""
    if (other := await claimed(request)) is not None:
        return other
    body, size = await read(request, TokenizeRequest)
    engine = state_of(request).served(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give either prompt or messages", "prompt")
    if body.messages is not None:
        chat = ChatRequest(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        tokens = await render(engine, chat, size)
    else:
        text = body.prompt or ""
        check_text(text, engine)
        tokens = await off_loop(len(text), engine.tokenizer.encode, text, body.add_special_tokens)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": engine.max_model_len,
        "tokens": tokens,
    }
    written = await alone(len(tokens), _written, engine.tokenizer, answer, body.return_token_strs)
    return Response(written, media_type="application/json")


def _written(tokenizer: ServedTokenizer, answer: dict[str, Any], token_strs: bool) -> bytes:
    if token_strs:
        tokens = answer["tokens"]
        # Each token once: a text of a million tokens holds few different ones.
        text = {i: tokenizer.token_bytes(i).decode("utf-8", errors="replace") for i in set(tokens)}
        answer["token_strs"] = [text[i] for i in tokens]
    members = (f"{dumps(name)}:{_in_slices(value)}" for name, value in answer.items())
    return f"{{{','.join(members)}}}".encode()


def _in_slices(value: int | list[int] | list[str]) -> str:
    """dumps(), of a list SLICE items at a time: one call for a million stops every thread for 0.1 s."""
    if isinstance(value, int):
        return str(value)
    slices = (value[start : start + SLICE] for start in range(0, len(value), SLICE))
    return f"[{','.join(dumps(part)[1:-1] for part in slices)}]"


@router.post("/detokenize", openapi_extra=BodySchema(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens written out."""
    body, _ = await read(request, DetokenizeRequest)
    tokenizer = state_of(request).served(body.model).tokenizer
    written = await off_loop(len(body.tokens), _text, tokenizer, body.tokens)
    return Response(written, media_type="application/json")


def _text(tokenizer: ServedTokenizer, tokens: Sequence[int]) -> bytes:
    for token in set(tokens):
        if not 0 <= token < tokenizer.vocab_size:
            raise InvalidRequestError(
                f"there is no token {token}; the model has {tokenizer.vocab_size}", "tokens"
            )
    return dumps({"prompt": tokenizer.decode(tokens, skip_special_tokens=False)}).encode()
