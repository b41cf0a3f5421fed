"""Requests of the OpenAI API as pydantic models, and one-line errors for what does not fit them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from octavo.errors import InvalidRequestError
from octavo.params import (
    MAX_BEAM_WIDTH,
    MAX_LOGPROBS,
    MAX_N,
    BeamSearchParams,
    RequestOutputKind,
    SamplingParams,
)
from octavo.server.openai.structured import structured


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ValueError("must be a string or a list of strings")


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


_MESSAGES_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]},
            "name": {"type": "string"},
        },
    },
}
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
_STOP_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

TOOL_CHOICE_SCHEMA = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {"type": {"const": "function"}, "function": {"type": "object"}},
        },
    ]
}
RESPONSE_FORMAT_SCHEMA = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]}},
}

Messages = Annotated[list[Any], Field(json_schema_extra=_MESSAGES_SCHEMA)]
Prompts = Annotated[Any, BeforeValidator(_prompts), Field(json_schema_extra=_PROMPT_SCHEMA)]
Stops = Annotated[Any, BeforeValidator(_strings), Field(json_schema_extra=_STOP_SCHEMA)]


def _integral(value: Any) -> Any:
    """8.0 is an integer, as in JSON Schema."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _integrals(value: Any) -> Any:
    """The same for a list, which may be long."""
    floats = isinstance(value, list) and float in set(map(type, value))
    return list(map(_integral, value)) if floats else value


Int = Annotated[int, BeforeValidator(_integral)]
Ids = Annotated[list[int], BeforeValidator(_integrals)]


class Strict(BaseModel):
    """No coercion: "5" is no number. Unknown fields were refused before (see parse)."""

    model_config = ConfigDict(strict=True, extra="forbid")


class StreamOptions(Strict):
    """include_usage: a last chunk with the usage; continuous_usage_stats: usage so far in each."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class StructuredOutputs(Strict):
    """Exactly one of these: see octavo.params.StructuredOutputsParams."""

    json_: dict[str, Any] | str | bool | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


class GenerationRequest(Strict):
    """What chat and completions share. Absent and null are the same."""

    model: str | None = None
    n: Int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] | None = None
    seed: Int | None = None
    stop: Stops = ()
    stop_token_ids: Ids = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Int = 0
    max_tokens: Int | None = None
    skip_special_tokens: bool = True
    priority: Int = 0
    cache_salt: str | None = None
    return_token_ids: bool = False
    user: str | None = None
    bad_words: Stops = ()
    allowed_token_ids: Ids | None = None
    prompt_logprobs: Int | None = None
    truncate_prompt_tokens: Int | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    response_format: Annotated[Any, Field(json_schema_extra=RESPONSE_FORMAT_SCHEMA)] = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def structured_field(self) -> str:
        """What this request calls its structured outputs."""
        return structured(self)[0]

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
            prompt_logprobs = max(self.prompt_logprobs, prompt_logprobs or 0)
        return SamplingParams(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            # JSON has only string keys; SamplingParams turns them into ids.
            logit_bias=self.logit_bias,  # type: ignore[arg-type]
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            logprobs=logprobs,
            skip_special_tokens=self.skip_special_tokens,
            bad_words=self.bad_words,
            allowed_token_ids=self.allowed_token_ids,
            prompt_logprobs=prompt_logprobs,
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            structured_outputs=structured(self)[1],
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


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions. Without max_tokens the answer may fill the context."""

    messages: Messages
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[Any] = []
    tool_choice: Annotated[Any, Field(json_schema_extra=TOOL_CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool = True

    def sampling_params(self) -> SamplingParams:
        """SamplingParams of this request.

        Raises:
            InvalidRequestError: a value is out of range, or two contradict each other.
        """
        top = self.top_logprobs
        if top is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
        if top is not None and not 0 <= top <= MAX_LOGPROBS:
            raise InvalidRequestError(f"top_logprobs must be from 0 to {MAX_LOGPROBS}", "top_logprobs")
        given, older = self.max_completion_tokens, self.max_tokens
        if given is not None and older is not None and given != older:
            raise InvalidRequestError(
                "max_completion_tokens and max_tokens differ: give one of them", "max_completion_tokens"
            )
        params = self.params(older if given is None else given, (top or 0) if self.logprobs else None)
        return self.searched(params)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. Without max_tokens 16 are generated."""

    prompt: Prompts
    echo: bool = False
    add_special_tokens: bool = True
    logprobs: Int | None = None
    best_of: Int | None = None

    def sampling_params(self) -> SamplingParams:
        """SamplingParams of this request.

        Raises:
            InvalidRequestError: a value is out of range, or two contradict each other.
        """
        if self.echo and self.logprobs is not None and self.stream and self.n > 1:
            raise InvalidRequestError("echo with logprobs in a stream needs n: 1", "echo")
        count = self.best_of
        if count is not None and count < self.n:
            raise InvalidRequestError(f"best_of {count} is below n {self.n}", "best_of")
        if count is not None and count > self.n and self.stream:
            raise InvalidRequestError("best_of above n needs stream: false", "best_of")
        if self.max_tokens == 0 and self.echo and self.stream:
            raise InvalidRequestError("max_tokens: 0 needs stream: false", "max_tokens")
        limit = 16 if self.max_tokens is None else self.max_tokens
        if limit == 0 and self.echo:  # nothing but the prompt is wanted
            limit = 1
        params = self.params(limit, self.logprobs, self.logprobs if self.echo else None)
        if self.use_beam_search:
            return self.searched(params, count, "n" if count is None else "best_of")
        params = self.searched(params)
        if count is not None and count > self.n:
            if count > MAX_N:
                raise InvalidRequestError(f"best_of must be at most {MAX_N}, not {count}", "best_of")
            # Which is best is told by the logprobs of all.
            params = params.replace(n=count, logprobs=self.logprobs or 0)
        return params


class ResponsesRequest(Strict):
    """POST /v1/responses."""

    model: str | None = None
    input: Annotated[Any, Field(json_schema_extra={"anyOf": [{"type": "string"}, {"type": "array"}]})]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    max_output_tokens: Int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: Int | None = None
    tools: list[Any] = []
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    text: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    cache_salt: str | None = None
    priority: Int = 0
    user: str | None = None


class EmbeddingRequest(Strict):
    """POST /v1/embeddings. pooling, normalize: see octavo.params.PoolingParams."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Int | None = None
    pooling: str = "last"
    normalize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: Int | None = None
    priority: Int = 0
    cache_salt: str | None = None
    user: str | None = None


class TokenizeRequest(Strict):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Ids
