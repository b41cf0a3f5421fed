"""GET /info: what is served, and within which bounds."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import octavo
from octavo.params import MAX_N, MAX_STOP_STRINGS
from octavo.server.engine import ServedEngine
from octavo.server.state import ServerSettings, state_of

router = APIRouter()


@router.get("/info")
async def info(request: Request) -> Response:
    """By TGI's names. What Octavo does not know of itself is null."""
    state = state_of(request)
    engine = state.served()
    bound = longest_input(engine, state.settings)
    return JSONResponse(
        {
            "model_id": engine.served_model_name,
            "model_sha": None,
            "model_dtype": engine.facts.get("dtype"),
            "model_device_type": "cuda" if engine.device_memory else "cpu",
            "model_pipeline_tag": "text2text-generation" if engine.max_encoder_len else "text-generation",
            "max_concurrent_requests": state.settings.max_concurrent_requests,
            "max_best_of": min(MAX_N, engine.max_sequences),
            "max_stop_sequences": MAX_STOP_STRINGS,
            "max_input_tokens": bound,
            "max_input_length": bound,  # its name before TGI 2.2
            "max_total_tokens": engine.max_model_len,
            "validation_workers": 1,
            "max_client_batch_size": state.settings.max_prompts,
            "router": "octavo",
            "version": octavo.__version__,
            "sha": None,
            "docker_label": None,
        }
    )


def longest_input(engine: ServedEngine, settings: ServerSettings) -> int:
    """Tokens that a prompt may have."""
    most = engine.max_encoder_len or engine.max_model_len - 1
    return min(most, settings.max_input_tokens or most)
