"""Admission: whether a request could be served at all, before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.config import SchedulerConfig
from octavo.engine.beams import SearchMaker, pages_needed
from octavo.engine.encoder_input import check_encoder_input
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import MAX_LOGPROBS, BeamSearchParams, SamplingParams

MAX_PRIORITY = 2**31 - 1


def check_priority(priority: int) -> None:
    """Raise InvalidRequestError where it is no integer of 32 bits, signed."""
    if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, not {priority!r}", "priority"
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """The bounds that a request must keep. Immutable, so any thread may ask.

    Attributes:
        eos_ids: end a sequence unless it ignores them.
        vocab_size: token ids at or above it are refused; None: not checked.
        beam_search: None: beam searches are refused.
    """

    config: SchedulerConfig
    eos_ids: frozenset[int]
    vocab_size: int | None
    beam_search: SearchMaker | None

    def check(
        self, token_ids: Sequence[int], params: SamplingParams, encoder_token_ids: Sequence[int] = ()
    ) -> None:
        """Whether a request could be served.

        Raises:
            InvalidRequestError: the prompt is empty or too long, a token id is out of range, or n is more
                than could run and wait together.
        """
        check_encoder_input(encoder_token_ids, self.config.max_encoder_len, self.vocab_size)
        length, limit = len(token_ids), self.config.max_model_len
        if length == 0:
            raise InvalidRequestError("the prompt is empty: it must hold at least one token", "prompt")
        most = limit if params.only_prompt else limit - 1
        if length > most:
            raise InvalidRequestError(
                f"the prompt has {length} tokens; max_model_len {limit} leaves room for at most {most}",
                "prompt",
            )
        if params.n > self.config.max_sequences:
            most = self.config.max_sequences
            raise InvalidRequestError(
                f"n {params.n} is above the {most} sequences that may run and wait", "n"
            )
        if (params.bad_words or params.structured_outputs is not None) and not params.constraints:
            raise InvalidRequestError(
                "bad_words and structured_outputs need a tokenizer: use LLM or AsyncLLM", "structured_outputs"
            )
        if params.beam_search is not None:
            self._check_beams(length, len(encoder_token_ids), params, params.beam_search)
        vocab = self.vocab_size
        if vocab is None:
            if min(token_ids) < 0:
                raise InvalidRequestError(f"token id {min(token_ids)} is negative", "prompt")
            return
        if min(token_ids) < 0 or max(token_ids) >= vocab:
            wrong = next(t for t in token_ids if not 0 <= t < vocab)
            raise InvalidRequestError(f"token id {wrong} is not in the vocabulary of {vocab}", "prompt")
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            highest = max(getattr(params, name) or (0,))
            if highest >= vocab:
                raise InvalidRequestError(f"{name} names token {highest}, the vocabulary has {vocab}", name)

    def _check_beams(
        self, length: int, encoder_length: int, params: SamplingParams, beams: BeamSearchParams
    ) -> None:
        config, width = self.config, beams.beam_width
        if self.beam_search is None:
            raise UnsupportedError("this engine was made without a beam search", "beam_search")
        if width > config.max_num_seqs:
            raise InvalidRequestError(
                f"beam_width {width} needs {width} sequences at once; max_num_seqs is {config.max_num_seqs}",
                "beam_width",
            )
        if self.vocab_size is not None and 2 * width > self.vocab_size:
            raise InvalidRequestError(
                f"beam_width {width} needs a vocabulary of {2 * width}; it has {self.vocab_size}",
                "beam_width",
            )
        ends = len(self.end_ids(params)[0])
        if width + ends > MAX_LOGPROBS:
            raise InvalidRequestError(
                f"beam_width {width} with {ends} end tokens is above {MAX_LOGPROBS}", "beam_width"
            )
        needed = pages_needed(length, self.limit(length, params), width, config.page_size)
        needed += -(-encoder_length // config.page_size)
        if needed > config.num_pages:
            raise InvalidRequestError(
                f"{width} beams of up to {self.limit(length, params)} tokens need {needed} pages of "
                f"{config.page_size} tokens, the pool has {config.num_pages}: lower beam_width or max_tokens",
                "beam_width",
            )

        # Each of them sees no more local pages than that; what they have in common is seen once.
        local = min(needed, width * config.local_pages_at_a_time)
        if config.local_window is not None and local > config.num_local_pages:
            raise InvalidRequestError(
                f"{width} beams see up to {local} local pages at a time, and there are "
                f"{config.num_local_pages}: lower beam_width or max_tokens",
                "beam_width",
            )

    def limit(self, length: int, params: SamplingParams) -> int:
        """How long a sequence may become whose prompt has this length."""
        limit = self.config.max_model_len + params.only_prompt  # with the token that is drawn at its end
        return limit if params.max_tokens is None else min(limit, length + params.max_tokens)

    def end_ids(self, params: SamplingParams) -> tuple[frozenset[int], frozenset[int]]:
        """(tokens that end a sequence, those of them that are not the caller's own)."""
        own = frozenset(params.stop_token_ids)
        eos = frozenset[int]() if params.ignore_eos else self.eos_ids
        return eos | own, eos - own
