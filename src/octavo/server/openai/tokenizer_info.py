"""GET /tokenizer_info, as vLLM has it: what clients that encode texts here, such as lm-eval, must know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.server.state import state_of

router = APIRouter()


class _Named(Protocol):
    @property
    def special_tokens(self) -> Mapping[str, str]: ...


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """The named special tokens, as text, and the chat template; null: there is none."""
    engine = state_of(request).served()
    named = cast(_Named, engine.tokenizer).special_tokens
    return JSONResponse(
        {
            "tokenizer_class": type(engine.tokenizer).__name__,
            "model_max_length": engine.max_model_len,
            "bos_token": None,
            "eos_token": None,
            "pad_token": None,
            "unk_token": None,
            **named,
            "chat_template": engine.template,
        }
    )
