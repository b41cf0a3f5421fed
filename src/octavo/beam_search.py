"""What LLM.beam_search returns, in vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidRequestError
from octavo.params import BeamSearchParams, CompletionOutput, Logprob, RequestOutput, SamplingParams
from octavo.sampling.beam import normalized

_UNSAID = SamplingParams()
_SAID_TWICE = {
    "n": "beam_width",
    "max_tokens": "max_tokens",
    "ignore_eos": "ignore_eos",
    "include_stop_str_in_output": "include_stop_str_in_output",
    "beam_search": None,
}
"""Fields of SamplingParams that BeamSearchParams has too, and its name for them."""


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One of the completions found.

    Attributes:
        tokens: the prompt and what was generated, as in vLLM.
        logprobs: of each generated token: the model's, with what logit_bias and penalties make of them.
        cum_logprob: their sum.
        score: the sum over tokens ** length_penalty, by which sequences are ordered (transformers'
            sequences_scores).
        text: of what was generated.
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float
    score: float
    text: str
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The completions of a prompt, best first: beam_width of them, or as many as limits allow."""

    sequences: list[BeamSearchSequence]


def sampling_params(params: BeamSearchParams, others: SamplingParams | None = None) -> SamplingParams:
    """The same wish as the engine takes it, with what is asked beside it.

    Raises:
        InvalidRequestError: one of them is of another type, or others says otherwise what params says.
    """
    if not isinstance(params, BeamSearchParams):
        raise InvalidRequestError(f"params must be BeamSearchParams, not {type(params).__name__}", "params")
    others = SamplingParams() if others is None else others
    if not isinstance(others, SamplingParams):
        raise InvalidRequestError(
            f"sampling_params must be one SamplingParams, not {type(others).__name__}", "sampling_params"
        )
    for name, wanted in _SAID_TWICE.items():
        value = getattr(others, name)
        if value not in (getattr(_UNSAID, name), getattr(params, wanted or name, None)):
            where = f"BeamSearchParams.{wanted} says it" if wanted else "params says it"
            raise InvalidRequestError(f"sampling_params.{name} {value!r}: {where}", name)
    return others.replace(
        n=params.beam_width,
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        include_stop_str_in_output=params.include_stop_str_in_output,
        logprobs=others.logprobs or 0,
        beam_search=params,
    )


def output_of(output: RequestOutput, params: BeamSearchParams) -> BeamSearchOutput:
    """A finished RequestOutput as vLLM's users read it."""

    def sequence(found: CompletionOutput) -> BeamSearchSequence:
        total = found.cumulative_logprob or 0.0
        return BeamSearchSequence(
            [*output.prompt_token_ids, *found.token_ids],
            list(found.logprobs or ()),
            total,
            normalized(total, len(found.token_ids), params.length_penalty),
            found.text,
            found.finish_reason,
            found.stop_reason,
        )

    return BeamSearchOutput([sequence(found) for found in output.outputs])
