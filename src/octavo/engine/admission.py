"""Admission: whether a request could be served at all, before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.config import SchedulerConfig
from octavo.engine.beams import SearchMaker, pages_needed
from octavo.engine.request import EngineRequest
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import MAX_LOGPROBS, BeamSearchParams, SamplingParams

MAX_PRIORITY = 2**31 - 1


def check_priority(priority: int) -> None:
    """Raise InvalidRequestError where it is no integer of 32 bits, signed."""
    if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, not {priority!r}", "priority"
        )


def check_encoder_input(token_ids: Sequence[int], limit: int, vocab_size: int | None) -> None:
    """Raise InvalidRequestError unless an encoder that reads up to limit tokens (0: none) takes these."""
    if bool(token_ids) is not (limit > 0):
        wrong = "needs at least one token for its encoder" if limit else "has no encoder"
        raise InvalidRequestError(f"the model {wrong}", "encoder_prompt")
    if len(token_ids) > limit:
        raise InvalidRequestError(
            f"the encoder's input has {len(token_ids)} tokens; at most {limit} are computed in one step: "
            "shorten it, or raise max_model_len and max_num_batched_tokens as far as the model allows",
            "encoder_prompt",
        )
    for token in token_ids:
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            raise InvalidRequestError(
                f"token id {token} of the encoder's input is not in the vocabulary", "encoder_prompt"
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
    eos_ids: frozenset[int] = frozenset()
    vocab_size: int | None = None
    beam_search: SearchMaker | None = None

    def check(self, request: EngineRequest) -> None:
        """Whether a request could be served.

        Raises:
            InvalidRequestError: the prompt is empty or too long, a token id is out of range, n is more
                than could run and wait together, or what was generated already cannot be gone on from.
        """
        check_priority(request.priority)
        self.check_continuation(request)
        token_ids, params = request.prompt_token_ids, request.params
        check_encoder_input(request.encoder_token_ids, self.config.max_encoder_len, self.vocab_size)
        length, limit = len(token_ids), self.config.max_model_len
        if length == 0:
            raise InvalidRequestError("the prompt is empty: it must hold at least one token", "prompt")
        most = limit if params.only_prompt else limit - 1  # a token that is drawn takes a place, too
        if length > most:
            raise InvalidRequestError(
                f"the prompt has {length} tokens; max_model_len {limit} leaves room for at most {most}",
                "prompt",
            )
        if request.num_sequences > self.config.max_sequences:
            most = self.config.max_sequences
            raise InvalidRequestError(
                f"n {params.n} is above the {most} sequences that may run and wait", "n"
            )
        if params.needs_compiling:  # LLM and AsyncLLM have replaced these by constraints before
            raise InvalidRequestError(
                "bad_words and structured_outputs need a tokenizer: use LLM or AsyncLLM", "structured_outputs"
            )
        if params.beam_search is not None:
            _ = self.searches
            self._check_beams(request, params.beam_search)
        vocab = self.vocab_size
        if vocab is None:  # an engine without a model in it: ids have no upper bound
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

    def check_continuation(self, request: EngineRequest) -> None:
        """Whether an answer can be gone on with, or one of n be asked for alone.

        LLM and AsyncLLM ask this before they compile or detokenize: a grammar's matcher takes no id outside
        the vocabulary, and the event loop would wait while an endless answer is detokenized.

        Raises:
            InvalidRequestError: as check(), of these alone; the params need not be compiled yet.
        """
        if request.index is None and not request.generated:  # nothing to go on from
            return
        params, index, field = request.params, request.index, "generated_token_ids"
        for name in ("beam_search", "pooling", "prompt_logprobs"):
            if getattr(params, name) is not None:
                raise InvalidRequestError(f"{name} is for a request that begins: it cannot go on", name)
        if index is None and params.n > 1:  # which of the n answers was cut?
            raise InvalidRequestError(f"{params.n} completions go on one at a time: give index", "index")
        if index is not None and (type(index) is not int or not 0 <= index < params.n):
            why = f"index must be from 0 to {params.n - 1}, not {index!r}"
            if type(index) is int and index > 0:
                why += f": n is {params.n}, give the n that the answer was one of"
            raise InvalidRequestError(why, "index")
        ids = [token.token_id for token in request.generated]
        if not ids:  # an index alone: one of n completions from its beginning
            return
        if params.seed is None and not params.greedy:
            raise InvalidRequestError("an answer goes on with the seed that it began with: give seed", "seed")
        highest = max(ids) if self.vocab_size is None else self.vocab_size - 1
        for token in ids:
            if not 0 <= token <= highest:
                raise InvalidRequestError(f"token id {token} of {field} is not in the vocabulary", field)
        if params.allowed_token_ids is not None:  # could not have been drawn
            for token in set(ids).difference(params.allowed_token_ids):
                raise InvalidRequestError(f"{field} hold {token}, allowed_token_ids do not", field)
        start = len(request.prompt_token_ids)
        most = self.limit(start, params) - start
        if len(ids) >= most:  # the answer was complete already
            raise InvalidRequestError(
                f"{field} has {len(ids)} tokens, and the answer ends with {most} (max_tokens, max_model_len)",
                field,
            )
        ends = self.end_ids(params)
        for token in ids[params.min_tokens :]:
            if token in ends:
                raise InvalidRequestError(f"{field} hold {token}, which ends an answer", field)

    def _check_beams(self, request: EngineRequest, beams: BeamSearchParams) -> None:
        config, width, params = self.config, beams.beam_width, request.params
        length, encoder_length = len(request.prompt_token_ids), len(request.encoder_token_ids)
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
        ends = len(self.end_ids(params))
        if width + ends > MAX_LOGPROBS:  # each beam reports as many candidates
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

        # Each of them sees no more sliding pages than that; what they have in common is seen once.
        sliding = min(needed, width * config.sliding_pages_at_a_time)
        if config.sliding_window is not None and sliding > config.num_sliding_pages:
            raise InvalidRequestError(
                f"{width} beams see up to {sliding} sliding pages at a time, and there are "
                f"{config.num_sliding_pages}: lower beam_width or max_tokens",
                "beam_width",
            )

    @property
    def searches(self) -> SearchMaker:
        """Who starts beam searches.

        Raises:
            UnsupportedError: nobody does.
        """
        if self.beam_search is None:
            raise UnsupportedError("this engine was made without a beam search", "beam_search")
        return self.beam_search

    def limit(self, length: int, params: SamplingParams) -> int:
        """How long a sequence may become whose prompt has this length."""
        limit = self.config.max_model_len + params.only_prompt  # with the token that is drawn at its end
        return limit if params.max_tokens is None else min(limit, length + params.max_tokens)

    def end_ids(self, params: SamplingParams) -> frozenset[int]:
        """Tokens that end a sequence."""
        own = frozenset(params.stop_token_ids)
        return own if params.ignore_eos else self.eos_ids | own
