"""What chats and completions ask of the sampler, and the names that they have for an answer's shape."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from octavo.errors import InvalidRequestError
from octavo.params import (
    DEFAULTS,
    MAX_ALLOWED_IDS,
    MAX_BAD_WORDS,
    MAX_BEAM_WIDTH,
    MAX_LOGIT_BIAS,
    MAX_STOP_IDS,
    MAX_STOP_STRINGS,
    NUMBERS,
    SHAPING,
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from octavo.server.openai.body import Int, Strict
from octavo.server.openai.fields import noted
from octavo.server.openai.shapes import MAX_SCHEMA, Ids, ResponseFormat, Schema, Stops, Texts, limited, values
from octavo.server.openai.structured import from_response_format

GUIDED = ("json", "regex", "choice", "grammar")


class StreamOptions(Strict):
    """include_usage: a last chunk with the usage; continuous_usage_stats: usage so far in each."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[bool, noted("stream_options.include_obfuscation")] = False


class StructuredOutputs(Strict):
    """Exactly one of these: see octavo.params.StructuredOutputsParams."""

    json_: Schema = Field(default=None, alias="json")
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Annotated[dict[str, Any] | str | None, values(MAX_SCHEMA)] = None


class _First(Strict):
    """The fields before the numbers: OpenAPI lists fields in the order in which they stand."""

    model: str | None = None
    n: Int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None


if TYPE_CHECKING:
    _Shaped = _First  # nobody names the numbers here: by their names they go on to SamplingParams
else:
    _JSON = {int: Int, float: float}
    _Shaped = create_model(
        "_Shaped", __base__=_First, **{name: (_JSON[NUMBERS[name].kind], DEFAULTS[name]) for name in SHAPING}
    )


class GenerationRequest(_Shaped):
    """What chat and completions share. Absent and null are the same."""

    logit_bias: Annotated[dict[str, float], limited(MAX_LOGIT_BIAS, "tokens")] | None = None
    seed: Int | None = None
    stop: Annotated[Stops, limited(MAX_STOP_STRINGS, "strings")] = ()
    stop_token_ids: Annotated[Ids, limited(MAX_STOP_IDS, "ids")] = Field(default=[])
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Int = 0
    max_tokens: Int | None = None
    skip_special_tokens: bool = True
    priority: Int = 0
    cache_salt: str | None = None
    return_token_ids: bool = False
    user: Annotated[str | None, noted("user")] = None
    bad_words: Annotated[Stops, limited(MAX_BAD_WORDS, "words")] = ()
    allowed_token_ids: Annotated[Ids, limited(MAX_ALLOWED_IDS, "ids")] | None = None
    prompt_logprobs: Int | None = None
    truncate_prompt_tokens: Int | None = None
    structured_outputs: Annotated[StructuredOutputs, limited(16)] | None = None
    guided_json: Schema = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    response_format: ResponseFormat = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    speculative: dict[str, Any] | None = None
    watermark: bool | dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @cached_property
    def shape(self) -> tuple[str, StructuredOutputsParams | None]:
        """(the field that asks for a shape of the answer, what for).

        Raises:
            InvalidRequestError: two fields ask, or one is malformed.
        """
        found: list[tuple[str, StructuredOutputsParams]] = []
        if self.structured_outputs is not None:
            given = {name.rstrip("_"): value for name, value in self.structured_outputs}
            found.append(("structured_outputs", StructuredOutputsParams(**given)))
        for kind in GUIDED:
            value = getattr(self, f"guided_{kind}")
            if value is not None:
                found.append((f"guided_{kind}", StructuredOutputsParams(**{kind: value})))
        if self.response_format is not None and (wanted := from_response_format(self.response_format)):
            found.append(("response_format", wanted))
        if len(found) > 1:
            raise InvalidRequestError(f"{found[0][0]} and {found[1][0]} exclude each other", found[1][0])
        return found[0] if found else ("structured_outputs", None)

    def params(
        self, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        """SamplingParams of this request; its own checks give the errors for values out of range."""
        options = self.stream_options
        if options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream: true", "stream_options")
        if options is not None and options.continuous_usage_stats and not options.include_usage:
            raise InvalidRequestError("continuous_usage_stats needs include_usage: true", "stream_options")
        if self.prompt_logprobs is not None:
            if self.stream:
                raise InvalidRequestError("prompt_logprobs needs stream: false", "prompt_logprobs")
            prompt_logprobs = min(self.prompt_logprobs, 0) or max(self.prompt_logprobs, prompt_logprobs or 0)
        speculative = self.speculative
        if self.prediction is not None:  # OpenAI's name for what proposers look up
            speculative = {**(speculative or {}), "prediction": self.prediction}
        same = {name: getattr(self, name) for name in _SAME}
        return SamplingParams(
            **same,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=self.shape[1],
            speculative=speculative,
            output_kind=RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY,
        )

    def searched(
        self, params: SamplingParams, beam_width: int | None = None, named: str = "n"
    ) -> SamplingParams:
        """The same as a search of beam_width beams (n by default), where one is asked for; n come back."""
        if not self.use_beam_search:
            for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, name) != neutral:
                    raise InvalidRequestError(f"{name} needs use_beam_search: true", name)
            return params
        if self.stream:
            raise InvalidRequestError(
                "use_beam_search needs stream: false: which beams win is known only at the end",
                "use_beam_search",
            )
        width = self.n if beam_width is None else beam_width
        if width > MAX_BEAM_WIDTH:
            raise InvalidRequestError(f"{named} {width} is above {MAX_BEAM_WIDTH} beams", named)
        beams = BeamSearchParams(
            width,
            2**31 - 1 if params.max_tokens is None else params.max_tokens,
            ignore_eos=params.ignore_eos,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=params.include_stop_str_in_output,
            early_stopping=self.early_stopping,
        )
        return params.replace(beam_search=beams)


_OWN = ("max_tokens", "logprobs", "prompt_logprobs", "structured_outputs", "speculative")
_SAME = tuple(name for name in DEFAULTS if name in GenerationRequest.model_fields and name not in _OWN)
"""Fields that mean the same here and in SamplingParams, whose checks give the errors."""


def shaping(body: BaseModel) -> dict[str, Any]:
    """The numbers that another API's request gives on to the chat that answers it."""
    return {name: getattr(body, name) for name in SHAPING if name in type(body).model_fields}
