"""OpenAI's /v1/completions, streamed: prompts are texts or token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.bench.serving.apis import Api, Piece, piece_of
from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.errors import InvalidRequestError


def body(call: LoadRequest, asked: Asked) -> dict[str, Any]:
    """A request for one streamed completion."""
    prompt = call.prompt
    if not isinstance(prompt, str) and any(isinstance(part, Mapping) for part in prompt):
        raise InvalidRequestError("messages are for chats: --backend openai-chat")
    return {
        "model": asked.model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": call.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **asked.sampling,
        **({"ignore_eos": True} if asked.ignore_eos else {}),
        **asked.extra,
    }


def read(event: Mapping[str, Any]) -> Piece:
    """The text of the first choice, and the usage."""
    choices = event.get("choices") or [{}]
    return piece_of(bool(choices[0].get("text")), event)


API = Api(("openai", "octavo", "vllm", "sglang", "llama.cpp"), "/v1/completions", body, read, b"[DONE]")
