"""Requests of TGI's API, and the SamplingParams that answer them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationError

from octavo.checks import need
from octavo.errors import InvalidRequestError
from octavo.params import (
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    NUMBERS,
    SEED_MASK,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from octavo.params.watermark import WatermarkParams
from octavo.server.openai.body import Int, Strict
from octavo.server.openai.fields import check_unknown, misfit, only_known
from octavo.server.openai.shapes import MAX_SCHEMA, Texts, limited, values

MAX_NEW_TOKENS = 100
"""Where a request does not say."""
_GRAMMAR_SCHEMA = {
    "type": "object",
    "required": ["type", "value"],
    "properties": {"type": {"enum": ["json", "regex", "json_schema"]}, "value": {}},
}


class GenerateParameters(Strict):
    """`parameters` of a request. Absent and null are the same.

    An answer is greedy unless do_sample, temperature, top_k, top_p or typical_p asks for a draw.
    """

    best_of: Int | None = None
    decoder_input_details: bool = False
    details: bool = False
    do_sample: bool = False
    frequency_penalty: float | None = None
    grammar: Annotated[
        dict[str, Any] | None, Field(json_schema_extra={"anyOf": [_GRAMMAR_SCHEMA, {"type": "null"}]})
    ] = None
    max_new_tokens: Int | None = None
    repetition_penalty: float | None = None
    return_full_text: bool | None = None
    seed: Int | None = None
    stop: Annotated[Texts, limited(MAX_STOP_STRINGS, "strings")] = Field(default=[])
    temperature: float | None = None
    top_k: Int | None = None
    top_n_tokens: Int | None = None
    top_p: float | None = None
    truncate: Int | None = None
    typical_p: float | None = None
    watermark: bool | dict[str, Any] = False

    @property
    def drawn(self) -> bool:
        """Whether tokens are drawn; else the likeliest one is taken."""
        return self.do_sample or any(
            value is not None for value in (self.temperature, self.top_k, self.top_p, self.typical_p)
        )

    @property
    def scored(self) -> bool:
        """Whether the answer says more than its text."""
        return self.details or self.decoder_input_details

    def sampling_params(self, stream: bool) -> SamplingParams:
        """SamplingParams of these.

        Raises:
            InvalidRequestError: a value is out of range, or two contradict each other.
        """
        self._check(stream)
        count = self.best_of or 1
        top = self.top_n_tokens or 0
        given = {name: getattr(self, name) for name in _SAME if getattr(self, name) is not None}
        if not self.drawn:
            given["temperature"] = 0.0
        return SamplingParams(
            **given,
            n=count,
            seed=self.seed,
            stop=self.stop,
            include_stop_str_in_output=True,
            max_tokens=MAX_NEW_TOKENS if self.max_new_tokens is None else self.max_new_tokens,
            logprobs=top if stream or self.scored or count > 1 else None,
            prompt_logprobs=0 if self.decoder_input_details else None,
            truncate_prompt_tokens=self.truncate,
            watermark=None if self.watermark is False else self.watermark,
            structured_outputs=None if self.grammar is None else _shape(self.grammar),
            output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
        )

    def _check(self, stream: bool) -> None:
        """What TGI refuses where Octavo's own parameters would not."""
        for name in _POSITIVE:
            value = getattr(self, name)
            most = NUMBERS[name].high if name in NUMBERS else None
            fits = value is None or 0 < value <= (value if most is None else most)
            bound = "" if most is None else f" and at most {most:g}"
            need(fits, f"must be strictly positive{bound}, not {value}", name)
        for name in ("top_p", "typical_p"):
            share = getattr(self, name)
            need(share is None or 0 < share < 1, "must be > 0.0 and < 1.0", name)
        WatermarkParams.of(self.watermark)
        top = self.top_n_tokens
        need(top is None or 0 <= top <= MAX_LOGPROBS, f"must be >= 0 and <= {MAX_LOGPROBS}", "top_n_tokens")
        seed = self.seed
        need(
            seed is None or 0 <= seed <= SEED_MASK,
            f"must be an integer from 0 to {SEED_MASK}, not {seed}",
            "seed",
        )
        count = self.best_of or 1
        if count > 1:
            need(count <= MAX_N, f"must be > 0 and <= {MAX_N}", "best_of")
            need(not stream, "!= 1 is not supported when streaming tokens", "best_of")
            need(self.drawn, "> 1 needs sampling: set do_sample or a temperature", "best_of")
            need(self.seed is None, "must not be set when best_of > 1", "seed")
        need(
            not (stream and self.decoder_input_details),
            "is not supported when streaming tokens",
            "decoder_input_details",
        )


_SAME = ("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty")
_POSITIVE = ("temperature", "top_k", "repetition_penalty", "best_of", "max_new_tokens", "truncate")


class GenerateBody(Strict):
    """POST /, /generate and /generate_stream, and TGI's /tokenize."""

    inside: ClassVar[Mapping[str, str]] = dict.fromkeys(GenerateParameters.model_fields, "parameters")

    inputs: str
    parameters: Annotated[
        dict[str, Any],
        limited(256),
        values(MAX_SCHEMA),
        Field(json_schema_extra=lambda schema: schema.update(GenerateParameters.model_json_schema())),
    ] = Field(default={})
    stream: bool = False
    add_special_tokens: bool = True
    model: str | None = None
    priority: Int = 0
    cache_salt: str | None = None


def parameters(given: Mapping[str, Any]) -> GenerateParameters:
    """A request's parameters.

    Raises:
        InvalidRequestError: one that nobody knows, or of a wrong type. UnsupportedError: one that is refused.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in GenerateParameters.model_fields:
            fields[name] = value
        else:
            fields |= check_unknown(name, given, GenerateParameters)
    try:
        return GenerateParameters.model_validate(fields)
    except ValidationError as error:
        raise misfit(error, fields) from None


def _shape(grammar: Mapping[str, Any]) -> StructuredOutputsParams:
    """`grammar`: {"type": "json" | "regex" | "json_schema", "value": ...}."""
    only_known(grammar, ("type", "value"), "grammar", "grammar")
    kind, value = grammar.get("type"), grammar.get("value")
    if kind == "json_schema":
        if not isinstance(value, dict) or not isinstance(value.get("schema"), dict):
            raise InvalidRequestError("grammar.value must be an object with a schema", "grammar")
        only_known(value, ("name", "schema", "strict", "description"), "grammar.value", "grammar")
        return StructuredOutputsParams(json=value["schema"])
    if kind == "regex":
        if not isinstance(value, str) or not value:
            raise InvalidRequestError("grammar.value must be a regular expression, as text", "grammar")
        return StructuredOutputsParams(regex=value)
    need(kind == "json", "must have the type json, regex or json_schema", "grammar")
    if isinstance(value, str):  # a schema as text
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"grammar.value is not valid JSON: {error}", "grammar") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("grammar.value must be a JSON schema", "grammar")
    if "properties" in value and "type" not in value:  # TGI's own examples: an object is meant, no number
        value = {"type": "object", **value}
    return StructuredOutputsParams(json=value)
