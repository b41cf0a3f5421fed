"""Prompts as completions, embeddings and /tokenize take them: texts, or token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from octavo.errors import InvalidRequestError
from octavo.server.engine import ServedEngine
from octavo.server.openai.body import off_loop
from octavo.server.openai.shapes import limited

MAX_CUT = 1 << 20
"""Bytes of a text of which only the last tokens are wanted: all of it is encoded, at 150 of memory each."""
MAX_IDS = 1 << 20
"""Of one list, be it a prompt; no context is longer."""
Prompt = str | list[int]


def _prompts(value: Any) -> list[str] | list[list[int]]:
    """One prompt or several, as text or as token ids: always a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return value
        if _is_ids(value):
            return [value]
        if all(isinstance(item, list) and _is_ids(item) for item in value):
            return value
    raise ValueError("must be a string, a list of token ids, or a non-empty list of one of them")


def _is_ids(value: list[Any]) -> bool:
    return all(type(item) is int and item >= 0 for item in value)  # a bool is no token id


_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "minItems": 1,
        },
    ]
}
Prompts = Annotated[Any, BeforeValidator(_prompts), limited(MAX_IDS), Field(json_schema_extra=_PROMPT_SCHEMA)]


async def encode_prompts(
    engine: ServedEngine,
    prompts: Sequence[Prompt],
    add_special_tokens: bool,
    whole: bool = True,
    field: str = "prompt",
) -> list[list[int]]:
    """Token ids of each prompt; ids are taken as they are. In a thread where all texts together are long.

    Args:
        whole: False: only the prompts' last tokens are wanted, so they may be longer than the context.

    Raises:
        InvalidRequestError: a text is longer than any context's tokens, or than what may be cut.
    """
    for prompt in prompts:
        if isinstance(prompt, str):
            (check_text if whole else check_cut)(prompt, engine, field)
    size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    return await off_loop(size, _encode, engine, prompts, add_special_tokens)


def _encode(engine: ServedEngine, prompts: Sequence[Prompt], add_special_tokens: bool) -> list[list[int]]:
    encode = engine.tokenizer.encode
    return [encode(prompt, add_special_tokens) if isinstance(prompt, str) else prompt for prompt in prompts]


def check_text(text: str, engine: ServedEngine, field: str = "prompt") -> None:
    """Raise if no max_model_len tokens hold this text: that is cheaper than to encode it."""
    context = max(engine.max_model_len, engine.max_encoder_len)
    most = context * engine.tokenizer.longest_token
    if len(text) > most:
        raise InvalidRequestError(
            f"{field} has {len(text)} characters; the context of {context} tokens holds {most}",
            field,
        )


def check_cut(text: str, engine: ServedEngine, field: str = "prompt") -> None:
    """Raise if a text of which the end is wanted is too long for that, and for the context."""
    if 4 * len(text) > MAX_CUT and len(text.encode("utf-8", "surrogatepass")) > MAX_CUT:
        try:
            check_text(text, engine, field)
        except InvalidRequestError as error:
            more = f"; of one that is cut at most {MAX_CUT} bytes are taken"
            raise InvalidRequestError(f"{error}{more}", field) from None
