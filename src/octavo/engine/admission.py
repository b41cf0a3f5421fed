"""Who enters: whether ever (Admission), who is next (QueueOrder), who waits (PrefixesInProgress)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.continuation import check_continuation
from octavo.engine.kv_manager import KVManager
from octavo.engine.request import EngineRequest, Request, RequestState, Wait
from octavo.engine.turns import Turns
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.params import BeamSearchParams, SamplingParams

MAX_PRIORITY = 2**31 - 1
PREFIX_WINDOW = 128
"""How many of the first waiting requests are compared by cached prefix: each look-up costs time."""

Key = tuple[str | None, tuple[int, ...]]
"""Of the first page of a prompt: its namespace and its tokens."""


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


class Searches(Protocol):
    """Who makes requests beam searches (beams.BeamSearches)."""

    def check(self, request: EngineRequest, beams: BeamSearchParams, bounds: Admission) -> None:
        """Raise InvalidRequestError unless so many beams can run."""
        ...

    def begin(self, request: Request, params: BeamSearchParams) -> None:
        """Make a request that is about to be queued one."""
        ...


def check_named(params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidRequestError if params name a token that the model has not."""
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        if (highest := max(getattr(params, name) or (0,))) >= vocab_size:
            raise InvalidRequestError(f"{name} names token {highest}; the model has {vocab_size}", name)


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
    beam_search: Searches | None = None

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
            self.searches.check(request, params.beam_search, self)
        vocab = self.vocab_size
        if vocab is None:  # an engine without a model in it: ids have no upper bound
            if min(token_ids) < 0:
                raise InvalidRequestError(f"token id {min(token_ids)} is negative", "prompt")
            return
        if min(token_ids) < 0 or max(token_ids) >= vocab:
            wrong = next(t for t in token_ids if not 0 <= t < vocab)
            raise InvalidRequestError(f"token id {wrong} is not in the vocabulary of {vocab}", "prompt")
        check_named(params, vocab)

    def check_continuation(self, request: EngineRequest) -> None:
        """Whether an answer can be gone on with, or one of n be asked for alone (continuation.py).

        LLM and AsyncLLM ask this before they compile or detokenize: a grammar's matcher takes no id outside
        the vocabulary, and the event loop would wait while an endless answer is detokenized.

        Raises:
            InvalidRequestError: as check(), of these alone; the params need not be compiled yet.
        """
        if request.index is not None or request.generated:
            check_continuation(request, self)

    @property
    def searches(self) -> Searches:
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


class QueueOrder:
    """The order in which the scheduler offers waiting requests a place.

    1.  By (priority, arrival).
    2.  *Longest prefix first* (policy "lpm"): among the first PREFIX_WINDOW of the most urgent
        priority, preempted ones come first, then those with the longest cached prefix, while it is
        still there; equal ones by arrival.
    3.  *Fair share.* Whoever enters before an older one overtakes it. After fair_share - 1 such
        admissions in a row the oldest is next, whatever its priority, and nobody else until it has
        entered. It is given the most urgent priority present, lest it be preempted for those it
        has waited for. So a request with p older ones before it waits for at most
        fair_share * (p + 1) entries, and under a flood of urgent requests the others keep
        1 / fair_share of the entries.
    4.  *Owners take turns* among those of one priority, where requests name any (Turns).

    Args:
        config: fair_share 1: the oldest always, whatever the priorities.
    """

    def __init__(self, config: SchedulerConfig, kv: KVManager) -> None:
        self._longest_prefix = config.scheduling_policy == "lpm" and kv.caching
        self._limit = config.fair_share - 1
        self._turns = Turns(config.max_num_seqs)
        self._kv = kv
        self._overtaken = 0  # admissions in a row that were not the oldest's

    def offer(self, waiting: Sequence[Request], running: Sequence[Request]) -> Iterator[Request]:
        """The waiting requests in order. Whoever is RUNNING when the next one is asked for has entered.

        Args:
            waiting, running: both in order (priority, arrival); waiting is not changed meanwhile.
        """
        mixed = waiting[0].order[0] != waiting[-1].order[0]
        owned = bool(waiting[0].source.owner)
        if not mixed and not self._longest_prefix and not owned:
            self._overtaken = 0
            yield from waiting
            return
        order: Iterable[Request] = self._by_prefix(waiting) if self._longest_prefix else waiting
        for request in self._turns.offer(order, running) if owned else order:
            if self._overtaken >= self._limit:
                yield from self._oldest(waiting, running)
            if _entered(request):
                continue  # as the oldest
            yield request
            if _entered(request):
                self._count(request, waiting)

    def _oldest(self, waiting: Sequence[Request], running: Sequence[Request]) -> Iterator[Request]:
        """Offer requests by arrival until one has entered. (Some cannot: they wait for something else.)"""
        most_urgent = min(queue[0].order[0] for queue in (waiting, running) if queue)
        for request in sorted(waiting, key=_arrival):
            if _entered(request):
                continue
            yield request
            if _entered(request):
                request.order = (most_urgent, request.order[1])
                self._overtaken = 0
                return

    def _count(self, request: Request, waiting: Sequence[Request]) -> None:
        """Count the admission of a request, by whether it overtook an older one."""
        arrival = request.order[1]
        older = any(r.order[1] < arrival and not _entered(r) for r in waiting)
        self._overtaken = self._overtaken + 1 if older else 0

    def _by_prefix(self, waiting: Sequence[Request]) -> list[Request]:
        urgent = waiting[0].order[0]
        head = [request for request in waiting[:PREFIX_WINDOW] if request.order[0] == urgent]

        def key(request: Request) -> tuple[bool, int]:
            return request.state is not RequestState.PREEMPTED, -self._kv.cached_tokens(request)

        return [*sorted(head, key=key), *waiting[len(head) :]]


def without(waiting: list[Request], entered: Sequence[Request]) -> list[Request]:
    """The requests that still wait. Usually the first have entered, so a long queue is not walked."""
    first = 0
    while first < len(entered) and _entered(waiting[first]):
        first += 1
    del waiting[:first]
    return waiting if first == len(entered) else [r for r in waiting if not _entered(r)]


def _arrival(request: Request) -> int:
    return request.order[1]


def _entered(request: Request) -> bool:
    return request.state is RequestState.RUNNING


class PrefixesInProgress:
    """The running requests whose prompt is not in the prefix cache yet, found by their first page.

    Made anew for each step; a request that found someone to wait for remembers it, so that waiting
    costs O(1) a step.
    """

    def __init__(self, kv: KVManager, running: Iterable[Request]) -> None:
        self._kv = kv
        self._size = kv.page_size
        self._by_first_page: dict[Key, list[Request]] = {}
        for request in running:
            # (Who has given back what is behind its window publishes no more.)
            state = request.kv
            if state.num_computed_tokens < request.num_prompt_tokens and not state.num_released_pages:
                self.add(request)

    def add(self, request: Request) -> None:
        """A request begins to compute its prompt."""
        if self._kv.caching and len(request.token_ids) >= self._size:
            self._by_first_page.setdefault(self._key(request), []).append(request)

    def worth_waiting(self, request: Request) -> bool:
        """Whether the request should wait for one that is computing a prefix of its tokens."""
        if request.needs_whole_prompt:
            return False  # it computes all of its prompt itself
        sibling = request.leader
        if sibling is not None and sibling.state is RequestState.RUNNING:
            # When it has the prompt, everything but the last token comes from its pages.
            return 1 < sibling.num_prompt_tokens > sibling.kv.num_computed_tokens
        if request.waits_for is not None:  # it waits already: for whom, and is that worth it still?
            earlier, until = request.waits_for
            at_work = earlier.state is RequestState.RUNNING and not earlier.kv.num_released_pages
            if at_work and _ready(earlier) < until:
                return True
            request.waits_for = None
        if not self._by_first_page or len(request.token_ids) <= self._size:  # no whole page to share
            return False
        candidates = self._by_first_page.get(self._key(request))
        if candidates is None:
            return False
        shared, earlier = max(
            ((self._shared_tokens(request, other), other) for other in candidates), key=lambda pair: pair[0]
        )
        if shared <= max(_ready(earlier), self._kv.cached_tokens(request)):  # it can begin with as much now
            return False
        request.waits_for = Wait(earlier, shared)
        return True

    def _key(self, request: Request) -> Key:
        return request.cache_key, tuple(request.token_ids[: self._size])

    def _shared_tokens(self, request: Request, other: Request) -> int:
        """Length of the common prefix in tokens, whole pages, the request's last token excluded."""
        size, mine, theirs = self._size, request.token_ids, other.token_ids
        limit = min(len(mine) - 1, other.num_prompt_tokens) // size * size
        if mine[:limit] == theirs[:limit]:
            return limit
        end = 0
        while end < limit and mine[end : end + size] == theirs[end : end + size]:
            end += size
        return end


def _ready(earlier: Request) -> int:
    """Tokens of the earlier request that the cache has; those that are being copied in are not there yet."""
    return 0 if earlier.kv.arriving else earlier.kv.num_computed_tokens
