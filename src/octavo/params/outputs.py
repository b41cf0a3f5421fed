"""What callers get: RequestOutput, its completions, their tokens' log-probabilities and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability under the model's raw distribution (temperature 1, no penalties)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class SampledToken:
    """A drawn token. logprob and top are filled where the row's params ask for logprobs.

    (Not frozen, because one is made per sequence and step, and freezing doubles the time.)

    Attributes:
        logprob: natural log of the raw model probability (before penalties and temperature).
        rank: 1 for the likeliest token; 0 where logprobs were not asked for.
        top: the likeliest tokens, best first, as (token id, logprob).
    """

    token_id: int
    logprob: float | None = None
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class CompletionOutput:
    """One of the n completions. finish_reason: None while running, "stop", "length" or "abort"."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: Sequence[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds of time.monotonic(); None until reached. And drafted tokens that were verified: those
    that are the answer's own, and others, those behind its end among them."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """What a caller gets for one prompt. seed is the one that was used, given or drawn.

    Attributes:
        prompt_logprobs: per token of the prompt its logprob and the likeliest ones', None for the
            first token; None as a whole where not asked for, or not known yet.
        encoder_prompt, encoder_prompt_token_ids: what the encoder of an encoder-decoder model has read;
            prompt is what its decoder went on from.
        embedding: the pooled hidden states of the prompt, as they are, where params.pooling asks for them.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: Sequence[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    seed: int = 0
    embedding: Sequence[float] | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the model has read, an encoder's included."""
        return len(self.prompt_token_ids) + len(self.encoder_prompt_token_ids or ())
