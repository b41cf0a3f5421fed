"""Answers and events as clients' own types read them: whatever the types do not take raises."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
from array import array
from collections.abc import Callable
from typing import Any, get_type_hints

from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from huggingface_hub import (
    ChatCompletionOutput,
    ChatCompletionStreamOutput,
    TextGenerationOutput,
    TextGenerationStreamOutput,
)
from huggingface_hub.inference._generated.types.base import BaseInferenceType
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.shared import ErrorObject
from pydantic import TypeAdapter

from support.asgi import Reply

Reader = Callable[[Any], object]


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def typed(kind: Any) -> Reader:
    """A reader by a type of pydantic's, or one that it can check."""
    return lambda value: adapter(kind).validate_python(value)


def hub(kind: type[BaseInferenceType]) -> Reader:
    """huggingface_hub's own parser, and its fields' types: a member that is not sent is None to it."""

    def check(found: Any) -> None:
        if isinstance(found, list):
            for each in found:
                check(each)
        if not isinstance(found, BaseInferenceType):
            return
        hints = get_type_hints(type(found))
        for field in dataclasses.fields(found):
            value = getattr(found, field.name)
            check(value)
            if value is not None and not _nested(value):
                adapter(hints[field.name]).validate_python(value)

    return lambda value: check(kind.parse_obj_as_instance(value))


def _nested(value: Any) -> bool:
    """An inference type, or a list of them or of lists of them: these are checked by themselves."""
    if isinstance(value, list):
        return all(map(_nested, value))
    return isinstance(value, (dict, BaseInferenceType))


def vectors(value: Any) -> object:
    """The SDK unpacks what is packed before its type sees it."""
    for each in value["data"]:
        if isinstance(each["embedding"], str):
            each["embedding"] = array("f", base64.b64decode(each["embedding"])).tolist()
    return adapter(CreateEmbeddingResponse).validate_python(value)


def text(value: Any) -> object:
    """As the service's own: where the prompt comes back its first token has no log-probability, which the
    type does not say."""
    for choice in value["choices"]:
        logprobs = choice["logprobs"] or {}
        for name, number in (("token_logprobs", 0.0), ("top_logprobs", {})):
            each = logprobs.get(name)
            if each and each[0] is None:
                each[0] = number
    return adapter(Completion).validate_python(value)


def text_chunk(value: Any) -> object:
    """The type is that of whole answers: only these always say why they ended, be they the service's own."""
    for choice in value["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    return text(value)


def listed(value: Any) -> object:
    """The one answer of a list."""
    (only,) = value
    return hub(TextGenerationOutput)(only)


READERS: dict[str, tuple[Reader, Reader | None]] = {
    "openai chat": (typed(ChatCompletion), typed(ChatCompletionChunk)),
    "openai text": (text, text_chunk),
    "openai response": (typed(Response), typed(ResponseStreamEvent)),
    "openai vectors": (vectors, None),
    "openai input tokens": (typed(InputTokenCountResponse), None),
    "anthropic": (typed(Message), typed(RawMessageStreamEvent)),
    "anthropic tokens": (typed(MessageTokensCount), None),
    "hub chat": (hub(ChatCompletionOutput), hub(ChatCompletionStreamOutput)),
    "hub text": (hub(TextGenerationOutput), None),
    "hub texts": (listed, hub(TextGenerationStreamOutput)),
    "hub tokens": (hub(TextGenerationStreamOutput), hub(TextGenerationStreamOutput)),
}
"""Of an answer, and of an event where it is streamed."""


def events(reply: Reply) -> list[Any]:
    """The data of a stream's events, but for the end's mark."""
    lines = [line for block in reply.body.decode().split("\n\n") for line in block.split("\n")]
    data = [line[6:] for line in lines if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def read(reads: str, reply: Reply) -> list[Any]:
    """An answer's JSON, or its events', checked."""
    whole, event = READERS[reads]
    if not reply.headers["content-type"].startswith("text/event-stream"):
        whole(found := reply.json())
        return [found]
    assert event is not None
    found = events(reply)
    assert found
    for each in found:
        event(each)
    return found


def read_error(reads: str, reply: Reply) -> str:
    """An error as its client reads it: the field that it names, or its message where its shape has none."""
    error = reply.json()
    if reads.startswith("anthropic"):
        adapter(ErrorResponse).validate_python(error)
        return str(error["error"]["message"])
    if reads in ("hub text", "hub texts", "hub tokens"):
        assert set(error) == {"error", "error_type"}
        return str(error["error"])
    adapter(ErrorObject).validate_python(error["error"])
    return str(error["error"]["param"])
