"""OpenAI's /v1/chat/completions, streamed: a prompt that is a text is one message of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.bench.serving.apis import Api, Piece, piece_of
from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.errors import InvalidRequestError

TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Members of a delta that are a part of the answer; that of the role is none."""


def body(call: LoadRequest, asked: Asked) -> dict[str, Any]:
    """A request for one streamed answer."""
    prompt = call.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if not all(isinstance(message, Mapping) for message in messages):
        raise InvalidRequestError("token ids are for completions: --backend openai")
    return {
        "model": asked.model,
        "messages": messages,
        "max_tokens": call.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **asked.sampling,
        **({"ignore_eos": True} if asked.ignore_eos else {}),
        **asked.extra,
    }


def read(event: Mapping[str, Any]) -> Piece:
    """What the first choice's delta brings, and the usage."""
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return piece_of(any(delta.get(name) for name in TEXTS), event)


API = Api(("openai-chat", "vllm-chat"), "/v1/chat/completions", body, read, b"[DONE]")
