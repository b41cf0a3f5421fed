"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from octavo.errors import InvalidRequestError
from octavo.server.openai.body import Ids, Strict, body_schema, off_loop, read
from octavo.server.openai.chat import ChatRequest, render
from octavo.server.openai.prompts import check_text
from octavo.server.openai.shapes import Messages
from octavo.server.state import state_of

router = APIRouter()


class TokenizeRequest(Strict):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default={})
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Ids


@router.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> dict[str, Any]:
    """Token ids of a text, or of a conversation under the chat template."""
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
    if body.return_token_strs:
        answer["token_strs"] = [
            engine.tokenizer.token_bytes(token).decode("utf-8", errors="replace") for token in tokens
        ]
    return answer


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, str]:
    """The text of token ids, special tokens written out."""
    body, _ = await read(request, DetokenizeRequest)
    tokenizer = state_of(request).served(body.model).tokenizer
    for token in body.tokens:
        if not 0 <= token < tokenizer.vocab_size:
            raise InvalidRequestError(
                f"there is no token {token}; the model has {tokenizer.vocab_size}", "tokens"
            )
    return {"prompt": tokenizer.decode(body.tokens, skip_special_tokens=False)}
