"""BeamGroup: the beams of one request, as sequences that share pages and go on together.

    waiting   first (the prompt alone)
    running   first computes the prompt -> first + others, one row each, fork after every token
    preempted all of them at once; later the first computes the prompt again, the others fork from
              it and compute what they had generated

What the beams have in common they share: a fork raises reference counts, and of the last page a
copy is taken by whoever writes to it first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from octavo.engine.request import (
    ABSENT,
    ERROR,
    ORDER,
    STOP,
    Cohort,
    EngineRequest,
    Request,
    RequestState,
    RequestUpdate,
)
from octavo.engine.step_plan import RowStep
from octavo.errors import NO_TOKEN_ALLOWED, InvalidRequestError
from octavo.params import MAX_LOGPROBS, BeamSearchParams, SampledToken, SamplingParams

if TYPE_CHECKING:
    from octavo.engine.admission import Admission
    from octavo.engine.scheduler import Scheduler

NOTHING_FOUND = f"{NO_TOKEN_ALLOWED} to any beam by the request's limits"

Likeliest = Sequence[tuple[int, float]]


class FinishedBeam(Protocol):
    """A finished sequence."""

    @property
    def tokens(self) -> tuple[SampledToken, ...]: ...
    @property
    def finish_reason(self) -> str: ...


class Search(Protocol):
    """Who chooses (sampling.beam.BeamSearch)."""

    def advance(self, likeliest: Sequence[Likeliest]) -> list[tuple[int, int]]:
        """(beam to continue, token) of each beam after this step; none: the search is over."""
        ...

    def hypotheses(self) -> Sequence[FinishedBeam]:
        """What was found, best first."""
        ...


class SearchMaker(Protocol):
    """Starts searches."""

    def __call__(
        self, params: BeamSearchParams, end_ids: frozenset[int], max_tokens: int, num_logprobs: int
    ) -> Search: ...

    def candidates(self, params: BeamSearchParams, end_ids: frozenset[int]) -> int:
        """How many of each beam's likeliest tokens the search needs."""
        ...

    def following(self, params: SamplingParams) -> SamplingParams:
        """The params with limits (constraints) that fork as beams do."""
        ...


class Tables(Protocol):
    """What assigns page tables to beams (KVManager)."""

    def regroup(
        self, members: Sequence[Request], parents: Sequence[Request], ended: Sequence[Request]
    ) -> None: ...


Beams = list[tuple[Request, list[int]]]
"""Of each new beam the member whose pages it begins with, and its token ids."""


def pages_needed(num_prompt: int, num_tokens: int, width: int, page_size: int) -> int:
    """Pages of so many beams of num_tokens tokens each that have only the prompt in common."""
    shared = num_prompt // page_size
    return shared + width * (-(-num_tokens // page_size) - shared)


class BeamGroup(Cohort):
    """The beams of one search, and the candidates that they have reported in the current step.

    1.  Members run like any request, but each waits after its token until all have theirs: then the
        search says which beam goes on with which token, and page tables are assigned anew.
    2.  The group enters and is preempted as a whole, and has all its rows from the beginning, so
        members wait for nobody outside of it.

    Attributes:
        first: the request that the caller knows; the first member while the group runs.
        members: those with pages, as the search numbers its beams.
        rows: all rows of the group while it runs; started: those that the executor knows of.
    """

    forks = True

    def __init__(self, first: Request, width: int, num_results: int, search: Search) -> None:
        self.first, self.width = first, width
        self.num_results = num_results
        self.members = [first]
        self.rows: list[int] = []
        self.started: set[int] = set()
        self._search = search
        self._suspended: list[list[int]] = []
        self._received: dict[Request, Likeliest] = {}

    def first_of(self, request: Request) -> Request:
        return self.first

    def together(self, request: Request) -> tuple[Request, ...]:
        return tuple(self.members)

    def take_rows(self, request: Request, free: list[int]) -> None:
        self.rows = [free.pop() for _ in range(self.width)]
        request.row = self.rows[0]

    def rows_of(self, request: Request) -> Sequence[int]:
        """All rows of the group are its first request's."""
        return self.rows if request is self.first else ()

    def start(self, row: int) -> None:
        self.started.add(row)

    def leave(self, request: Request) -> Sequence[int]:
        known = [row for row in self.rows if row in self.started]
        self.suspend()
        return known

    def take_back(self, request: Request, step: RowStep) -> None:
        """The search begins anew."""

    def pages_to_enter(self, request: Request, page_size: int) -> int:
        """Pages of all beams with a next token each."""
        longest = max(map(len, self._suspended), default=self.first.num_prompt_tokens + 1)
        return pages_needed(self.first.num_prompt_tokens, longest, self.width, page_size)

    def receive(self, member: Request, likeliest: Likeliest) -> bool:
        """Take the candidates of a member's next token. True: all members have theirs."""
        self._received[member] = likeliest
        return len(self._received) == len(self.members)

    def decide(self) -> Beams:
        """The next beams, or none when the search is over."""
        received = [self._received[member] for member in self.members]
        self._received.clear()
        if self._suspended:  # the prompt is back: go on where the beams were
            known, self._suspended = self._suspended, []
            return [(self.first, tokens) for tokens in known]
        return [
            (self.members[parent], [*self.members[parent].token_ids, token])
            for parent, token in self._search.advance(received)
        ]

    def sampled(
        self, scheduler: Scheduler, request: Request, token: SampledToken, now: float
    ) -> list[RequestUpdate]:
        """A beam has its candidates. When all have theirs, the search decides and tables are assigned."""
        first = self.first
        scheduler.note_token(first, now)
        if not self.receive(request, token.top):
            return []
        if first.kv.num_computed_tokens == first.num_prompt_tokens:
            scheduler.kv.publish(first)  # while nobody shares it
        if beams := self.decide():
            assign_tables(self, beams, scheduler.kv, scheduler.running)
            return []
        self.conclude()
        scheduler.finish(first, now)
        updates = self.updates(first)
        scheduler.num_generated_tokens += sum(len(update.tokens) for update in updates)
        return updates

    def resize(self, count: int) -> list[Request]:
        """Make or drop members, so that there are `count`. Returns the dropped ones."""
        ended = self.members[count:]
        del self.members[count:]
        while len(self.members) < count:
            index = len(self.members)
            self.members.append(self.first.spawn(index, self.rows[index]))
        return ended

    def suspend(self) -> None:
        """The members have released their pages; the first request will compute the prompt again."""
        if len(self.members[0].token_ids) > self.first.num_prompt_tokens:
            self._suspended = [member.token_ids for member in self.members]
        for member in self.members:
            member.row, member.num_in_flight = -1, 0
            if member is not self.first:
                member.state = RequestState.FINISHED
        self.members = [self.first]
        self.first.token_ids = self.first.token_ids[: self.first.num_prompt_tokens]
        self.rows = []
        self.started.clear()
        self._received.clear()

    def conclude(self) -> None:
        """The search is over; limits may have left every beam without a next token."""
        first = self.first
        first.finish_reason = STOP if self._search.hypotheses() else ERROR
        first.stop_reason = None if first.finish_reason == STOP else NOTHING_FOUND

    def updates(self, request: Request) -> list[RequestUpdate]:
        """The end of each completion that the caller asked for; ABSENT are those that do not exist."""
        first = self.first
        ends: list[tuple[tuple[SampledToken, ...], str | None, int | str | None]]
        if first.finish_reason == STOP:
            found = self._search.hypotheses()[: self.num_results]
            ends = [(h.tokens, h.finish_reason, self._stop_reason(h)) for h in found]
            ends += [((), ABSENT, None)] * (self.num_results - len(found))
        else:
            ends = [((), first.finish_reason, first.stop_reason)] * self.num_results
        return [
            RequestUpdate(
                first.request_id,
                index,
                tokens,
                reason,
                stop_reason,
                first.num_cached_tokens,
                first.metrics if index == 0 else replace(first.metrics, num_preemptions=0),
            )
            for index, (tokens, reason, stop_reason) in enumerate(ends)
        ]

    def _stop_reason(self, hypothesis: FinishedBeam) -> int | None:
        last, own = hypothesis.tokens[-1].token_id, self.first.params.stop_token_ids
        return last if hypothesis.finish_reason == STOP and last in own else None


@dataclass(frozen=True, slots=True)
class BeamSearches:
    """Makes requests beam searches (admission.Searches). make: who starts one (sampling.beam.BeamSearch)."""

    make: SearchMaker

    def check(self, request: EngineRequest, beams: BeamSearchParams, bounds: Admission) -> None:
        """Raise InvalidRequestError unless so many beams can run."""
        config, width, params = bounds.config, beams.beam_width, request.params
        length, encoder_length = len(request.prompt_token_ids), len(request.encoder_token_ids)
        if width > config.max_num_seqs:
            raise InvalidRequestError(
                f"beam_width {width} needs {width} sequences at once; max_num_seqs is {config.max_num_seqs}",
                "beam_width",
            )
        if bounds.vocab_size is not None and 2 * width > bounds.vocab_size:
            raise InvalidRequestError(
                f"beam_width {width} needs a vocabulary of {2 * width}; it has {bounds.vocab_size}",
                "beam_width",
            )
        ends = len(bounds.end_ids(params))
        if width + ends > MAX_LOGPROBS:  # each beam reports as many candidates
            raise InvalidRequestError(
                f"beam_width {width} with {ends} end tokens is above {MAX_LOGPROBS}", "beam_width"
            )
        needed = pages_needed(length, bounds.limit(length, params), width, config.page_size)
        needed += -(-encoder_length // config.page_size)
        if needed > config.num_pages:
            raise InvalidRequestError(
                f"{width} beams of up to {bounds.limit(length, params)} tokens need {needed} pages of "
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

    def begin(self, request: Request, params: BeamSearchParams) -> None:
        """Make a request a beam search; its rows report as many candidates as that needs."""
        asked = request.params
        limit = request.max_total_tokens - request.num_prompt_tokens
        search = self.make(params, request.stop_ids, limit, asked.logprobs or 0)
        following = self.make.following(row_params(asked, self.make.candidates(params, request.stop_ids)))
        request.source = replace(request.source, params=following)
        request.group = BeamGroup(request, params.beam_width, asked.n, search)


def row_params(params: SamplingParams, candidates: int) -> SamplingParams:
    """Params of a beam's row: it draws nothing, and reports this many candidates."""
    return params.replace(temperature=0.0, n=1, logprobs=candidates)


def assign_tables(
    group: BeamGroup,
    beams: Sequence[tuple[Request, list[int]]],
    tables: Tables,
    running: list[Request],
) -> None:
    """Make members of these beams (each a parent and token ids), and give each its parent's pages.

    Args:
        running: in order; new members enter it, those that have ended leave it.
    """
    before, ended = set(group.members), group.resize(len(beams))
    tables.regroup(group.members, [parent for parent, _ in beams], ended)
    for one in ended:
        running.remove(one)
        one.state = RequestState.FINISHED
    for one, (_, token_ids) in zip(group.members, beams, strict=True):
        one.token_ids, one.enters = token_ids, True
        if one not in before:
            one.state = RequestState.RUNNING
            insort(running, one, key=ORDER)
