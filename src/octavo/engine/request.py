"""EngineRequest: what is asked; Request: one in the engine; KVState: where its keys and values are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from octavo.params import RequestMetrics, SampledToken, SamplingParams

if TYPE_CHECKING:
    from octavo.engine.page_group import EncoderOutput
    from octavo.engine.prefix_cache import Node
    from octavo.engine.scheduler import Scheduler
    from octavo.engine.step_plan import RowStep

STOP, LENGTH, ABORT, ERROR = "stop", "length", "abort", "error"
"""Finish reasons: a stop token or string, a limit of length, the caller, a failure (see stop_reason)."""
ABSENT = "absent"
"""Of a completion that does not exist: a beam search under limits found fewer than n."""
ORDER = attrgetter("order")


class RequestState(Enum):
    """Where a request is. Only RUNNING ones own a row and pages.

    WAITING -> RUNNING -> FINISHED is the usual way. PREEMPTED gave its row and pages to an older one and
    waits again.
    """

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


class Cohort:
    """The requests that enter and leave a row together: here one alone. BeamGroup is one of many beams.

    Attributes:
        width: rows that it needs to enter.
        forks: tables are assigned anew after each token, so none is planned past it and pages stay whole.
    """

    width = 1
    forks = False

    def first_of(self, request: Request) -> Request:
        """The request of this cohort that the caller knows."""
        return request

    def together(self, request: Request) -> tuple[Request, ...]:
        """All requests of the cohort."""
        return (request,)

    def pages_to_enter(self, request: Request, page_size: int) -> int:
        """Pages that the cohort needs when it enters."""
        return -(-request.num_prompt_tokens // page_size)

    def take_rows(self, request: Request, free: list[int]) -> None:
        """Give the request, which enters, rows of the free ones."""
        request.row = free.pop()

    def rows_of(self, request: Request) -> Sequence[int]:
        """The rows that this request gives back when it leaves."""
        return (request.row,)

    def start(self, row: int) -> None:
        """The next plan tells the executor of this row."""

    def leave(self, request: Request) -> Sequence[int]:
        """Give up the request's rows. Returns those that the executor was told of."""
        known, request.row = (request.row,), -1
        return known

    def take_back(self, request: Request, step: RowStep) -> None:
        """This step of the request was not executed; the scheduler plans it again."""
        request.num_in_flight -= step.sample

    def sampled(
        self, scheduler: Scheduler, request: Request, token: SampledToken, now: float
    ) -> list[RequestUpdate]:
        """It has its next token. Asked of those who fork: they decide together what follows."""
        return []

    def updates(self, request: Request) -> list[RequestUpdate]:
        """The updates that tell the caller of the request's end."""
        return [update_of(request)]


ALONE = Cohort()


class Wait(NamedTuple):
    """A request waits for an `earlier` one, which computes a prefix of its, until that has `until` tokens."""

    earlier: Request
    until: int


@dataclass(frozen=True, slots=True)
class Namespace:
    """Under what name computed prefixes are shared: only requests with equal namespaces share any.

    Attributes:
        salt: the caller's; None: shared with all who name none.
        encoder: what an encoder has read, on which all that the decoder computes depends.
        adapter: names the adapter by its content; approximation: how the keys and values were
            computed, where that is not exactly what the model says. "": the model's own, exactly.
        key: the namespace as the prefix cache, the pages of encoder outputs and the names of pages on
            disk hold it. Made here and nowhere else; they only compare it.
    """

    salt: str | None = None
    encoder: tuple[int, ...] = ()
    adapter: str = ""
    approximation: str = ""
    key: str | None = field(init=False)

    def __post_init__(self) -> None:
        key = self.salt
        if len(self.encoder) > 0:
            digest = hashlib.sha256(",".join(map(str, self.encoder)).encode()).hexdigest()
            key = f"{self.salt!r}/{digest}"
        special = self.adapter + self.approximation
        if special or str(self.salt).startswith("\0"):  # so no salt can name an adapter
            key = f"\0{(key, self.adapter, self.approximation)!r}"
        object.__setattr__(self, "key", key)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What a caller asks of the engine: made once, checked once (EngineCore.check), then handed on as it is.

    Attributes:
        request_id: the caller's name for it, unique among unfinished ones.
        prompt_token_ids: what is gone on from; nobody may change the list any more.
        priority: lower is served first; equal ones in order of arrival. 32 bits, signed.
        prompt, encoder_prompt: the texts, where they were given as such; outputs repeat them.
        encoder_token_ids: what the encoder of an encoder-decoder model reads.
        namespace: of the prefix cache.
        generated: the answer's first tokens, drawn elsewhere or before; the request goes on after them,
            as if it had never been cut. Their log-probabilities, if known, are repeated in outputs.
        index: only this one of params.n completions; None: all of them.
        owner: for whom it is, where several share the engine fairly ("": nobody asks).
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = SamplingParams()  # noqa: RUF009 - frozen, so all may share it
    priority: int = 0
    prompt: str | None = None
    encoder_prompt: str | None = None
    encoder_token_ids: tuple[int, ...] = ()
    namespace: Namespace = Namespace()
    generated: tuple[SampledToken, ...] = ()
    index: int | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        if self.namespace.encoder != self.encoder_token_ids:
            object.__setattr__(self, "namespace", replace(self.namespace, encoder=self.encoder_token_ids))

    @property
    def num_sequences(self) -> int:
        """Completions that it takes up while it waits and runs."""
        return self.params.n if self.index is None else 1

    @property
    def indexes(self) -> Sequence[int]:
        """Of the completions that it asks for."""
        return range(self.params.n) if self.index is None else (self.index,)


@dataclass(slots=True, eq=False)
class KVState:
    """Where a request's keys and values are. KVManager writes it; the scheduler writes the first two.

    Attributes:
        num_computed_tokens: tokens whose KV is in the pages, confirmed by a result.
        num_scheduled_tokens: the same, with the steps in flight.
        page_table: pages of slots [0, page_size), [page_size, 2 page_size), ...
        shares_tail: another request may hold the page that the next token goes to.
        arriving: the first pages are copied in by a step that has not been confirmed.
        cache_node: deepest node of the prefix cache in use, locked while it runs.
        num_cached_pages: leading pages of the table that the cache has been offered.
        num_released_pages: leading pages behind the window that it has released (groups.windows).
        num_unseen_pages: leading pages out of the sliding-window layers' window (groups.sliding_pages).
        cross: pages of the encoder's keys and values, while it runs.
        swapped, num_swapped_tokens: blocks of the swap space that hold its first tokens' KV (as far as the
            next one sees it), while it waits; swapping: the step that fills them has not been confirmed.
        swap_in: (block, page) pairs that its first step copies.
        load_in: (block, page) pairs of what the disk holds of its prefix, which its first step copies.
    """

    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    page_table: list[int] = field(default_factory=list)
    shares_tail: bool = False
    arriving: bool = False
    cache_node: Node | None = None
    num_cached_pages: int = 0
    num_released_pages: int = 0
    num_unseen_pages: int = 0
    cross: EncoderOutput | None = None
    swapped: list[int] = field(default_factory=list)
    num_swapped_tokens: int = 0
    swapping: bool = False
    swap_in: tuple[tuple[int, int], ...] = ()
    load_in: tuple[tuple[int, int], ...] = ()

    def leave(self) -> None:
        """Forget the pages, which were released; what swap space or disk hold for the request stays."""
        self.page_table, self.cache_node, self.cross = [], None, None
        self.num_cached_pages = self.num_released_pages = self.num_unseen_pages = 0
        self.shares_tail = self.arriving = False
        self.num_computed_tokens = self.num_scheduled_tokens = 0


@dataclass(slots=True, eq=False)
class Request:
    """One sequence: a prompt, what was generated, and how far its KV has come.

        token_ids   [ prompt ............... | generated ....... ]  (+ num_in_flight not seen yet)
        kv: computed [==================>                          ]  written, verified
            scheduled [========================>                   ]  handed to the executor

    Attributes:
        source: what the caller asks.
        index: which of its n completions this is; also the sample index that, with seed and position,
            keys the noise.
        seed: the caller's, or drawn.
        order: (priority, arrival number); lower goes first.
        max_total_tokens: the sequence ends when it is this long.
        stop_ids: tokens that end it (end of sequence included unless ignored).
        num_in_flight: sampled tokens that steps in flight will bring.
        kv: where its keys and values are.
        num_cached_tokens: prompt tokens that came from the cache at first admission.
        group: the requests that enter and leave together with it.
        leader: the first of its n siblings; the others share its pages when it has computed the prompt.
        enters: its row begins with its next step.
        waits_for: the request whose prefix it waits for.
    """

    source: EngineRequest
    index: int
    seed: int
    order: tuple[int, int]
    max_total_tokens: int
    stop_ids: frozenset[int]
    metrics: RequestMetrics
    token_ids: list[int] = field(init=False)
    state: RequestState = RequestState.WAITING
    num_prompt_tokens: int = field(init=False)
    num_in_flight: int = 0
    kv: KVState = field(default_factory=KVState)
    row: int = -1
    num_cached_tokens: int = 0
    group: Cohort = ALONE
    leader: Request | None = None
    enters: bool = False
    waits_for: Wait | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def __post_init__(self) -> None:
        prompt = self.source.prompt_token_ids
        self.num_prompt_tokens = len(prompt)
        self.token_ids = [*prompt, *[token.token_id for token in self.source.generated]]

    @property
    def request_id(self) -> str:
        return self.source.request_id

    @property
    def params(self) -> SamplingParams:
        return self.source.params

    @property
    def cache_key(self) -> str | None:
        """Under which computed prefixes are shared (Namespace.key)."""
        return self.source.namespace.key

    @property
    def encoder_token_ids(self) -> tuple[int, ...]:
        return self.source.encoder_token_ids

    @property
    def finished(self) -> bool:
        return self.state is RequestState.FINISHED

    @property
    def needs_whole_prompt(self) -> bool:
        """Something is wanted of every token of the prompt, so all of it is computed, cached or not."""
        wanted = self.params.prompt_logprobs is not None or self.params.pooling is not None
        return self.index == 0 and wanted

    @property
    def priority(self) -> int:
        return self.order[0]

    def num_uncomputed(self) -> int:
        """Tokens still to be scheduled, those in flight included; 0: wait for a result."""
        total = len(self.token_ids) + self.num_in_flight
        if total >= self.max_total_tokens:
            return 0
        if self.num_in_flight and self.group.forks:
            return 0  # which token follows is decided when all beams have theirs
        return total - self.kv.num_scheduled_tokens

    def spawn(self, index: int, row: int) -> Request:
        """Another sequence of the same request, with its prompt and nothing else yet: one of its beams."""
        metrics, bound = replace(self.metrics), self.max_total_tokens
        beam = Request(self.source, index, self.seed, self.order, bound, self.stop_ids, metrics)
        beam.row, beam.group = row, self.group
        return beam

    def append(self, tokens: Sequence[SampledToken]) -> Sequence[SampledToken]:
        """Take sampled tokens up to the one that ends the sequence. Returns those taken.

        Sets finish_reason and stop_reason when one ends it.
        """
        known = self.token_ids
        for count, token in enumerate(tokens, 1):
            token_id = token.token_id
            known.append(token_id)
            length = len(known)
            if token_id in self.stop_ids and length - self.num_prompt_tokens > self.params.min_tokens:
                self.finish_reason = STOP
                self.stop_reason = token_id if token_id in self.params.stop_token_ids else None
                return tokens[:count]
            if length >= self.max_total_tokens:
                self.finish_reason = LENGTH
                return tokens[:count]
        return tokens


@dataclass(slots=True)
class RequestUpdate:
    """What happened to one sequence: new tokens, or its end, or both.

    (Not frozen, because one is made per running request and step, and freezing doubles the time.)

    Attributes:
        finish_reason: None while it goes on; "stop", "length", "abort" or "error".
        stop_reason: the caller's stop token that ended it; for "error" the message.
        metrics: to be read only, but for drafted tokens, which whoever reads the text counts; the engine
            goes on writing it until the end.
        prompt_logprobs: position of the first, and tokens of the prompt with their logprobs.
        vector: the prompt's pooled hidden states; the update then ends a request without text.
        drafted, accepted: tokens of a draft that the step verified; so many of them come first in tokens.
    """

    request_id: str
    index: int
    tokens: Sequence[SampledToken]
    finish_reason: str | None
    stop_reason: int | str | None
    num_cached_tokens: int
    metrics: RequestMetrics
    prompt_logprobs: tuple[int, Sequence[SampledToken]] | None = None
    vector: tuple[float, ...] | None = None
    drafted: int = 0
    accepted: int = 0


def update_of(request: Request, tokens: Sequence[SampledToken] = ()) -> RequestUpdate:
    """What happened to a request since its last update, for callers outside the engine."""
    return RequestUpdate(
        request.source.request_id,
        request.index,
        tokens,
        request.finish_reason,
        request.stop_reason,
        request.num_cached_tokens,
        request.metrics,
    )
