"""StepBuilder: a StepPlan while the scheduler is still making it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.engine.kv_manager import NO_GROWTH, Growth, KVManager
from octavo.engine.page_group import EncoderOutput, PageGroup
from octavo.engine.request import Request
from octavo.engine.sources import Tier
from octavo.engine.step_plan import EncoderInput, NewRow, RowStep, StepPlan


@dataclass(slots=True)
class InFlight:
    """A step that was submitted and has no result yet: its plan, the requests of plan.steps, how often each
    had been preempted then (if that has grown, its pages were taken), the encoder outputs that the step
    computes, and the requests whose pages it copies to swap space."""

    plan: StepPlan
    requests: tuple[Request, ...]
    preemptions: tuple[int, ...]
    encoder_outputs: tuple[EncoderOutput, ...] = ()
    swapped: tuple[Request, ...] = ()

    def confirmed(self, kv: KVManager) -> None:
        """The step was executed, so what it wrote and copied can be used."""
        for output in self.encoder_outputs:
            output.written = True
        for victim in self.swapped:
            victim.kv.swapping = False
        kv.disk.executed(self.plan.step_id)

    def failed(self, kv: KVManager) -> None:
        """The step failed at an unknown point: what it was to save counts as lost."""
        for victim in self.swapped:
            kv.swap.forget(victim)
        kv.disk.executed(self.plan.step_id)
        kv.disk.abandon(self.plan.saves)


class DecodeFlight(InFlight):
    """A step of decode_step(): nothing that anybody waits for comes of it but tokens."""

    __slots__ = ()

    def confirmed(self, kv: KVManager) -> None:
        pass


def decode_step(
    step_id: int, freed_rows: Sequence[int], running: Sequence[Request], page_size: int
) -> InFlight | None:
    """The step in which each of these requests computes one token, in a page that it has: most steps.

    It is what StepBuilder would build. None: some request needs anything else, and nothing has changed.
    """
    steps: list[RowStep] = []
    for request in running:
        kv = request.kv
        start = kv.num_scheduled_tokens
        if (
            len(request.token_ids) != start + 1
            or start >= len(kv.page_table) * page_size
            or request.num_in_flight
            or kv.shares_tail
            or request.enters
        ):
            return None
        steps.append(RowStep(request.row, start, 1, (), True))
    for request in running:
        request.num_in_flight = 1
        request.kv.num_scheduled_tokens += 1
    plan = StepPlan(step_id, tuple(freed_rows), (), tuple(steps))
    return DecodeFlight(plan, tuple(running), tuple([r.metrics.num_preemptions for r in running]))


class StepBuilder:
    """Collects the rows of one step and keeps count of the token budget.

    Args:
        groups: whose numbers of pages stand beside a row's pages (PageGroup.number).
        max_sampled: rows of logits that the executor can draw from in a step; 0: as many as there are tokens.
    """

    def __init__(self, budget: int, groups: Sequence[PageGroup] = (), max_sampled: int = 0) -> None:
        self.left = budget
        self.max_sampled = max_sampled or budget
        self.num_sampled = 0
        self._groups = groups
        self.preempted = False
        self.encoder_outputs: list[EncoderOutput] = []
        self._encoded: set[Request] = set()
        self._steps: dict[Request, RowStep] = {}
        self._new_rows: dict[Request, NewRow] = {}
        self._copies: dict[Request, tuple[int, int]] = {}
        self.swapped: dict[Request, tuple[tuple[int, int], ...]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, request: Request) -> bool:
        return request in self._steps

    def place(self, request: Request, count: int, growth: Growth = NO_GROWTH) -> None:
        """Let the request compute its next `count` tokens in this step. Its table has pages for them."""
        pages, copied = growth.pages, None
        if growth.copy is not None:
            self._copies[request] = growth.copy
            copied = growth.copy[1]
        if request.enters:
            self._new_rows[request] = self._new_row(request)
            pages, copied = tuple(request.kv.page_table), None
        start = request.kv.num_scheduled_tokens
        end = start + count
        sample = end == len(request.token_ids) + request.num_in_flight
        if sample:
            request.num_in_flight += 1
            self.num_sampled += 1
        request.kv.num_scheduled_tokens = end
        step = RowStep(request.row, start, count, pages, sample, (), copied)
        for group in self._groups:
            group.number(step)
        self._steps[request] = step
        self.left -= count

    @property
    def left_for_drafts(self) -> int:
        """Tokens that the step can still take as drafts: of its budget and of max_sampled."""
        return min(self.left, self.max_sampled - self.num_sampled)

    def verify(
        self, request: Request, drafts: tuple[int, ...], parents: tuple[int, ...], pages: tuple[int, ...]
    ) -> None:
        """Let a request that samples in this step verify these drafts after its token."""
        step = self._steps[request]
        step.count += len(drafts)
        step.drafts, step.parents = drafts, parents
        step.pages += pages
        for group in self._groups:
            group.number(step)
        request.kv.num_scheduled_tokens += len(drafts)
        self.left -= len(drafts)
        self.num_sampled += len(drafts)

    def copies_for(self, request: Request) -> bool:
        """Whether the request's last page is a copy that this step makes."""
        return request in self._copies

    def can_encode(self, count: int) -> bool:
        """Whether an encoder input of so many tokens, which cannot be cut, may be part of the step.

        It must leave a token for the decoder, or be the first: more room it may never find.
        """
        return count < self.left or not self.encoder_outputs

    def encode(self, request: Request, output: EncoderOutput) -> None:
        """Let the encoder compute the request's input in this step."""
        self.encoder_outputs.append(output)
        self._encoded.add(request)
        self.left -= len(request.encoder_token_ids)

    def withdraw(self, requests: Iterable[Request]) -> None:
        """Undo place() for those of these requests that were placed."""
        for request in requests:
            step = self._steps.pop(request, None)
            if step is None:
                continue
            self._new_rows.pop(request, None)
            self._copies.pop(request, None)
            self.left += step.count
            request.kv.num_scheduled_tokens = step.start
            if step.sample:
                request.num_in_flight -= 1
                self.num_sampled -= 1

    def build(self, step_id: int, freed_rows: tuple[int, ...], disk: Tier) -> InFlight:
        swaps_in: list[tuple[int, int]] = []
        loads: list[tuple[int, int]] = []
        for request in self._new_rows:  # requests that enter: what their first step copies in
            request.enters = False
            swaps_in += request.kv.swap_in
            loads += request.kv.load_in
            request.kv.swap_in = request.kv.load_in = ()
            request.group.start(request.row)
        disk.enter(step_id, self._new_rows)
        swaps_out = tuple([pair for pairs in self.swapped.values() for pair in pairs])
        plan = StepPlan(
            step_id,
            freed_rows,
            tuple(self._new_rows.values()),
            tuple(self._steps.values()),
            tuple(self._copies.values()),
            swaps_out,
            tuple(swaps_in),
            disk.next_saves(),
            tuple(loads),
        )
        for group in self._groups:
            group.moves(plan)
        requests = tuple(self._steps)
        preemptions = tuple([r.metrics.num_preemptions for r in requests])
        outputs, swapped = tuple(self.encoder_outputs), tuple(self.swapped)
        return InFlight(plan, requests, preemptions, outputs, swapped)

    def _new_row(self, request: Request) -> NewRow:
        encoder, output = None, request.kv.cross
        if output is not None:
            encoder = EncoderInput(request.encoder_token_ids, output.pages, request in self._encoded)
        return NewRow(
            request.row,
            request.request_id,
            tuple(request.token_ids),
            request.num_prompt_tokens,
            request.params,
            request.seed,
            request.index,
            encoder,
            request.cache_key,
        )
