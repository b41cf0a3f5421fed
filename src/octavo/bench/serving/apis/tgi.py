"""Text Generation Inference's /generate_stream: prompts are texts, each event is a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.bench.serving.apis import Api, Piece, count_of, error_of
from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.errors import InvalidRequestError


def body(call: LoadRequest, asked: Asked) -> dict[str, Any]:
    """A request for one streamed answer; of temperature 0 is what TGI calls no sampling."""
    if not isinstance(call.prompt, str):
        raise InvalidRequestError("TGI takes texts: token ids and messages are for --backend openai")
    if asked.ignore_eos:
        raise InvalidRequestError("TGI ends where the model ends: it has no --ignore-eos")
    sampling = dict(asked.sampling)
    temperature = sampling.pop("temperature", 0.0)
    drawn = {"temperature": temperature, "do_sample": True} if temperature > 0 else {"do_sample": False}
    parameters = {
        "max_new_tokens": call.output_tokens,
        "details": True,
        "decoder_input_details": False,
        **drawn,
        **sampling,
        **asked.extra,
    }
    return {"inputs": call.prompt, "parameters": parameters}


def read(event: Mapping[str, Any]) -> Piece:
    """One token; the last event has the details, and with them how many there were."""
    token = event.get("token") or {}
    details = event.get("details")
    return Piece(
        bool(token.get("text")),
        count_of(details, "generated_tokens"),
        count_of(details, "input_length"),
        error=error_of(event),
    )


API = Api(("tgi",), "/generate_stream", body, read, None)
