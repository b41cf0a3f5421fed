"""SamplingParams: how to draw the tokens of a completion, with vLLM's field names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from octavo.checks import are_ids, booleans, items, need, plain_number, token_ids
from octavo.params.beams import MAX_LOGPROBS, BeamSearchParams
from octavo.params.bias import logit_bias
from octavo.params.declare import defaults, described, numbers, real, whole
from octavo.params.structured import StructuredOutputsParams

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 16_384
MAX_STOP_IDS = 4096
MAX_ALLOWED_IDS = 300_000
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_BAD_WORDS_CHARS = 8192
SEED_MASK = (1 << 64) - 1
LARGEST = 2**31 - 1


class RequestOutputKind(Enum):
    """CUMULATIVE: each output holds all so far; DELTA: only what is new; FINAL_ONLY: one output."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw the tokens of a completion. Field names and defaults are vLLM's.

    Numbers may be NumPy's scalars, and lists its arrays; they are kept as Python's.

    Attributes:
        n: completions per prompt, each with its own noise (sample index 0..n-1).
        temperature: 0 is greedy. Otherwise logits are divided by it.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches top_p, the
            crossing token included.
        min_p: keep tokens with p >= min_p * max p.
        typical_p: keep the tokens whose surprise is nearest to the average one, up to this probability.
        seed: 64 bits; None draws 53 random ones (JSON keeps no more), returned as RequestOutput.seed.
        max_tokens: upper bound of generated tokens; None fills the context that is left.
        logprobs: None, or how many likeliest tokens to report beside the drawn one (0: only it).
        prompt_logprobs: the same for the prompt's tokens, from the second on. With max_tokens 1 the prompt
            may fill the context.
        allowed_token_ids: no other token is drawn (stop tokens must be among them to be drawn).
        bad_words: texts that the answer never holds, however they are cut into tokens.
        structured_outputs: the shape that the answer must have.
        spaces_between_special_tokens: without effect: tokens are bytes, with no space between them.
        beam_search: search instead of drawing; n of its beams are returned, the best first.
        truncate_prompt_tokens: keep only so many of the prompt's last tokens.
        speculative: how much may be drafted (params.speculative); no answer depends on it.
        watermark: True, or params.watermark.WatermarkParams: favour tokens by which the text can be told.
        pooling: "last" or "mean": no text, but RequestOutput.embedding; LLM.embed fills this in.
        constraints: bad_words and structured_outputs as the sampler needs them; LLM fills this in.
    """

    n: int = whole(1, 1, MAX_N, "Completions for each prompt.")
    presence_penalty: float = real(
        0.0, -2, 2, "Subtracted from the logits of tokens that were generated before.", "penalty"
    )
    frequency_penalty: float = real(0.0, -2, 2, "The same, for each time that they were.", "penalty")
    repetition_penalty: float = real(
        1.0, 0.01, 100, "Above 1: tokens of prompt and answer become less likely.", "penalty"
    )
    temperature: float = real(1.0, 0, 100, "0: always the likeliest token; higher: more random.", "draw")
    top_p: float = real(
        1.0, 0, 1, "Keep the likeliest tokens that together reach this probability.", "draw", above=True
    )
    top_k: int = whole(0, 0, LARGEST, "Keep this many of the likeliest tokens; 0: all.", "draw")
    min_p: float = real(0.0, 0, 1, "Keep tokens at least this share as likely as the likeliest.", "draw")
    typical_p: float = real(1.0, 0, 1, "Keep this share, of about average surprise.", "draw", above=True)
    seed: int | None = whole(None, -(2**63), SEED_MASK, "The same seed gives the same text.", optional=True)
    stop: str | Sequence[str] = described((), "End the answer before this text. May be given several times.")
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = described(False, "Go on after the end-of-text token.")
    max_tokens: int | None = whole(
        16, 1, LARGEST, "Most tokens to generate, within what the context holds.", optional=True
    )
    min_tokens: int = whole(0, 0, LARGEST, "Generate at least this many tokens.")
    logprobs: int | None = whole(
        None, 0, MAX_LOGPROBS, "Report this many likeliest tokens beside each that came.", optional=True
    )
    prompt_logprobs: int | None = whole(
        None, 0, MAX_LOGPROBS, "The same for the prompt's tokens.", optional=True
    )
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: str | Sequence[str] = ()
    truncate_prompt_tokens: int | None = whole(
        None, 1, LARGEST, "Keep this many of the prompt's last tokens.", optional=True
    )
    speculative: Any = None
    watermark: Any = field(default=None, metadata={"text": "Favour tokens by which the text can be told."})
    pooling: str | None = field(default=None, repr=False)
    beam_search: BeamSearchParams | None = None
    constraints: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__  # the dataclass is frozen; this is its constructor
        set_(self, "stop", items("stop", "strings", self.stop))
        set_(self, "bad_words", items("bad_words", "strings", self.bad_words))
        set_(self, "stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        if self.logit_bias is not None:
            set_(self, "logit_bias", logit_bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            set_(self, "allowed_token_ids", token_ids("allowed_token_ids", self.allowed_token_ids))
        if isinstance(wanted := self.structured_outputs, Mapping):
            set_(self, "structured_outputs", StructuredOutputsParams(**wanted))
        for name in NUMBERS:
            set_(self, name, plain_number(getattr(self, name)))
        if self.top_k == -1:
            set_(self, "top_k", 0)
        self._check_numbers()
        booleans(self, *_FLAGS)
        known = isinstance(self.output_kind, RequestOutputKind)
        need(known, f"must be a RequestOutputKind, not {self.output_kind!r}", "output_kind")
        self._check_lists()
        self._check_structured()
        self._check_beams()

    def _check_numbers(self) -> None:
        for name, number in NUMBERS.items():
            if getattr(self, name) is not None or not number.optional:
                number.check(self, name)
        least, most = self.min_tokens, self.max_tokens
        need(most is None or least <= most, f"{least} is above max_tokens {most}", "min_tokens")

    def _check_lists(self) -> None:
        stop, name, most = self.stop, "stop", MAX_STOP_CHARS
        need(len(stop) <= MAX_STOP_STRINGS, f"takes at most {MAX_STOP_STRINGS} strings", name)
        need(all(isinstance(s, str) and s for s in stop), "must hold non-empty strings", name)
        need(sum(map(len, stop)) <= most, f"takes at most {most} characters in all", name)
        ends, name = self.stop_token_ids, "stop_token_ids"
        need(len(ends) <= MAX_STOP_IDS, f"takes at most {MAX_STOP_IDS} ids", name)
        need(are_ids(ends), "must hold token ids", name)
        need(not self.stop or self.detokenize, "strings need detokenize=True", "stop")
        allowed = self.allowed_token_ids
        if allowed is not None:
            name = "allowed_token_ids"
            need(len(allowed) <= MAX_ALLOWED_IDS, f"takes at most {MAX_ALLOWED_IDS} ids", name)
            need(bool(allowed) and are_ids(allowed), "must hold token ids, at least one", name)
        words, name, most = self.bad_words, "bad_words", MAX_BAD_WORDS_CHARS
        need(len(words) <= MAX_BAD_WORDS, f"takes at most {MAX_BAD_WORDS} words", name)
        fit = all(isinstance(w, str) and 0 < len(w) <= MAX_BAD_WORD_CHARS for w in words)
        need(fit, f"must hold strings of 1 to {MAX_BAD_WORD_CHARS} characters", name)
        need(sum(map(len, words)) <= most, f"takes at most {most} characters in all", name)

    def _check_structured(self) -> None:
        wanted = self.structured_outputs
        if wanted is None:
            return
        shaped = isinstance(wanted, StructuredOutputsParams)
        need(shaped, "must be a StructuredOutputsParams", "structured_outputs")
        need(not self.ignore_eos, "contradicts structured_outputs: leave it out", "ignore_eos")
        need(not self.min_tokens, "contradicts structured_outputs: leave it out", "min_tokens")

    def _check_beams(self) -> None:
        wanted = self.beam_search
        if wanted is None:
            return
        need(self.n <= wanted.beam_width, f"{self.n} is above beam_width {wanted.beam_width}", "n")
        for name, neutral in _BEAM_NEUTRAL.items():
            value = getattr(self, name)
            need(value in neutral, f"{value!r} cannot be had with a beam search", name)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def only_prompt(self) -> bool:
        """It is embedded, or scored and one token drawn, which is not computed: it may fill the context."""
        scored = self.prompt_logprobs is not None and self.max_tokens == 1 and self.beam_search is None
        return scored or self.pooling is not None

    @property
    def needs_compiling(self) -> bool:
        """It forbids text, or wants structure, and the constraints that say so in tokens are to be made."""
        return bool(self.bad_words or self.structured_outputs is not None) and not self.constraints

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed (and checked again)."""
        return dataclasses.replace(self, **changes)


NUMBERS, DEFAULTS = numbers(SamplingParams), defaults(SamplingParams)
DRAWING = tuple(name for name, number in NUMBERS.items() if number.role == "draw")
"""Numbers that only answers that are drawn obey."""
SHAPING = (*DRAWING, *(name for name, number in NUMBERS.items() if number.role == "penalty"))
"""Numbers that change which tokens come, in the order in which requests and commands have them."""
_FLAGS = tuple(name for name, default in DEFAULTS.items() if isinstance(default, bool))
_BEAM_NEUTRAL: dict[str, tuple[object, ...]] = {
    **{name: (DEFAULTS[name],) for name in DRAWING},
    "temperature": (0, 1),
    "stop": ((),),
    "seed": (None,),
    "prompt_logprobs": (None,),
    "pooling": (None,),
    "watermark": (None, False),
}
"""What does not go with beams, and the values that ask for nothing."""
