"""What callers ask and what they get: SamplingParams and RequestOutput, with vLLM's field names."""

from octavo.params.beams import MAX_BEAM_WIDTH, MAX_LOGPROBS, BeamSearchParams
from octavo.params.bias import MAX_LOGIT_BIAS
from octavo.params.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, SampledToken
from octavo.params.sampling import (
    DEFAULTS,
    DRAWING,
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_BAD_WORDS_CHARS,
    MAX_N,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOP_STRINGS,
    NUMBERS,
    SEED_MASK,
    SHAPING,
    RequestOutputKind,
    SamplingParams,
)
from octavo.params.structured import StructuredOutputsParams

__all__ = [
    "DEFAULTS",
    "DRAWING",
    "MAX_ALLOWED_IDS",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORDS_CHARS",
    "MAX_BAD_WORD_CHARS",
    "MAX_BEAM_WIDTH",
    "MAX_LOGIT_BIAS",
    "MAX_LOGPROBS",
    "MAX_N",
    "MAX_STOP_CHARS",
    "MAX_STOP_IDS",
    "MAX_STOP_STRINGS",
    "NUMBERS",
    "SEED_MASK",
    "SHAPING",
    "BeamSearchParams",
    "CompletionOutput",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SampledToken",
    "SamplingParams",
    "StructuredOutputsParams",
]
